"""Runs of the version before, whose classes had other names: read, shown and resumed as what they are."""

import importlib
from typing import Any

import pytest

from paceline.conf.errors import ConfigError
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import from_plain
from paceline.engine.config.moved import MOVED, moved
from paceline.engine.config.overrides import overrides_of
from paceline.engine.config.targets import load_class

OLD = {now: then for then, now in MOVED.items()}


def as_before(stored: Any) -> Any:
    """A stored configuration as the version before wrote it."""
    if isinstance(stored, dict):
        return {key: as_before(value) for key, value in stored.items()}
    if isinstance(stored, str):
        return next((OLD[now] + stored.removeprefix(now) for now in OLD if stored.startswith(now)), stored)
    return stored


@pytest.mark.parametrize(
    "typed",
    [["compress=topk", "hardware=virtual", "stragglers=one_slow"], ["sync=fedavg", "client=scaffold"]],
)
def test_what_was_stored_is_what_would_be_typed_now(typed: list[str]) -> None:
    now = compose(typed)
    then = as_before(now.model_dump())
    assert then != now.model_dump()
    assert from_plain(then) == now
    assert sorted(overrides_of(then)) == sorted(typed)


THEN = """
paceline.engine.callbacks.Best
paceline.engine.stragglers.Exponential
paceline.strategies.adapt.none.AsItIs
paceline.strategies.averages.ema.EMA
paceline.strategies.data_parallel.DataParallel
paceline.strategies.exchange.attack.Constant
paceline.strategies.exchange.aggregate.Mean
paceline.strategies.exchange.client.Plain
paceline.strategies.exchange.clip.Unclipped
paceline.strategies.exchange.collectives.Fabric
paceline.strategies.exchange.compress.Dense
paceline.strategies.exchange.privacy.Open
paceline.strategies.exchange.secure.Open
paceline.strategies.exchange.server.Plain
paceline.strategies.precision.Float32
paceline.strategies.schedules.cosine.Cosine
paceline.strategies.schedules.base.Unscheduled
paceline.strategies.sync.bsp.BSP
paceline.exchange.attack.Constant
paceline.exchange.client.Plain
paceline.exchange.compress.BFloat16
paceline.exchange.compress.cast.Float16
paceline.exchange.privacy.Open
paceline.exchange.server.Plain
paceline.strategies.schedules.linear.Linear
paceline.tasks.adversarial.training.Plain
"""


@pytest.mark.parametrize("then", THEN.split())
def test_a_class_that_the_version_before_named_is_there(then: str) -> None:
    module, _, name = moved(then).rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)


@pytest.mark.parametrize("then", ["paceline.strategies.exchange.compress.QSGD", "paceline.exchange.compress.Float16"])
def test_a_former_name_is_refused_by_the_new_one(then: str) -> None:
    with pytest.raises(ConfigError, match=rf"{then}: is called {moved(then)} now"):
        load_class("compress", then, object, ())
