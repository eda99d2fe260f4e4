"""A feature that changes gradients changes what is stepped with, under each way of sending them, or the run ends."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from choices import SYNCS, USUAL
from safetensors.torch import load_file
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.engine.api.preparing import prepare
from paceline.engine.config.experiment import shipped
from paceline.engine.config.targets import build
from paceline.engine.features import order
from paceline.engine.features.feature import Chosen, Context, Feature, Hooks
from paceline.engine.launch.virtual import cluster_of
from paceline.engine.launch.virtual import run as run_virtual
from paceline.engine.planning.build import assemble
from paceline.strategies import Sync
from paceline.strategies.core.terms import SHOWN_GRADIENTS, Need
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.onebit_adam import OneBitAdam
from paceline.testing.training import TrainingCase, TrainingPlan, mlp, momentum, train, workers_of
from paceline.tracking.run_directory import RunDirectory

SMALL = ("tracking=none", "data.limit=96", "batch_size=16", "model.hidden=[12]", "steps=4", "epochs=1000")
SMALL += ("evaluate.every=1000", "checkpoint.every=0", "optimizer.momentum=0", "hardware=virtual", "hardware.workers=2")
slow = pytest.mark.slow


class Doubling(Hooks):
    def __init__(self, context: Context) -> None:
        self._context = context

    def gradients(self) -> None:
        for parameter in self._context.parts.sync.parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(2)


class Doubled(Feature):
    key = "doubled"

    @classmethod
    def of(cls, chosen: Chosen) -> Self:
        return cls()

    def hooks(self, context: Context) -> Hooks:
        return Doubling(context)


def weights(folder: Path, name: str, *overrides: str) -> dict[str, Tensor]:
    """Trains on a virtual cluster in this process, where `order.FEATURES` is what the test made of it."""
    prepared = prepare([*SMALL, *overrides])
    directory = RunDirectory.create(folder, name)
    hardware: Any = prepared.experiment.hardware
    threads = torch.get_num_threads()
    parts = assemble(prepared.experiment, (), None)
    try:
        run_virtual(prepared.assignment(directory, prepared.plan()), parts, cluster_of(parts, hardware))
    finally:
        torch.set_num_threads(threads)
    return load_file(directory.path / "model.safetensors")


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "FEATURES", (*order.FEATURES, Doubled))


@pytest.mark.parametrize(
    "chosen",
    [
        ["sync=bsp"],
        pytest.param(["sync=bsp_naive"], marks=slow),
        pytest.param(["sync=bsp", "accumulate=2"], marks=slow),
        pytest.param(["sync=bsp", "compress=bf16"], marks=slow),
        ["sync=asp"],
        pytest.param(["sync=parameter_server"], marks=slow),
        pytest.param(["sync=ssp"], marks=slow),
        ["sync=local_sgd"],
        pytest.param(["sync=fedavg"], marks=slow),
        pytest.param(["sync=gossip"], marks=slow),
        ["strategy=pipeline", "strategy.stages=2"],
        pytest.param(["strategy=tensor", "strategy.degree=2"], marks=slow),
        pytest.param(["strategy=offload"], marks=slow),
    ],
    ids=" ".join,
)
def test_doubled_gradients_are_a_doubled_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: list[str]
) -> None:
    expected = weights(tmp_path, "rate", "optimizer.lr=0.1", *chosen)
    monkeypatch.setattr(order, "FEATURES", (*order.FEATURES, Doubled))
    found = weights(tmp_path, "gradients", "optimizer.lr=0.05", *chosen)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("chosen", ["sync=dion sync.rank=4", pytest.param("sync.shard=gradients", marks=slow)])
def test_a_run_whose_gradients_nobody_shows_ends_by_name(tmp_path: Path, doubled: None, chosen: str) -> None:
    """The run ends where a feature does not state its need, or a class says that it shows what it does not."""
    with pytest.raises(ConfigError, match=r"strategy=data_parallel, sync=(dion|bsp): shows no gradient .* Doubling"):
        weights(tmp_path, "run", "optimizer.lr=0.1", *chosen.split())


@pytest.mark.parametrize(
    ("chosen", "hides", "instead"),
    [
        (["sync=dion"], "sync=dion", "sync=bsp"),
        (["sync=onebit_adam", "optimizer=adam"], "sync=onebit_adam", "sync=bsp"),
        (["sync.shard=optimizer"], "sync=bsp", "sync.shard=none"),
        (["strategy=torch_fsdp", "hardware=local"], "strategy=torch_fsdp", "strategy=torch_ddp"),
        (["strategy=offload", "strategy.delayed_update=true"], "strategy=offload", "strategy.delayed_update=false"),
    ],
)
def test_a_plan_refuses_what_shows_no_gradients(
    monkeypatch: pytest.MonkeyPatch, chosen: list[str], hides: str, instead: str
) -> None:
    class Stated(Doubled):
        key = "average"  # a group, as a feature's is

        def needs(self, chosen: Chosen) -> list[Need]:
            return [Need(SHOWN_GRADIENTS, "changes gradients")]

    monkeypatch.setattr(order, "FEATURES", (*order.FEATURES, Stated))
    with pytest.raises(ConfigError, match=f"average=none: changes gradients, and {hides} shows no gradient") as caught:
        prepare(["hardware=virtual", *chosen]).plan()
    assert instead in str(caught.value)
    prepare(["hardware=virtual"]).plan()


SHOWN: list[int] = []  # one for each time; workers of a virtual cluster are threads of this process


@pytest.mark.parametrize("name", SYNCS)
def test_each_mode_shows_its_gradients_in_each_step_if_it_says_so(
    virtual_workers: Callable[..., Any], name: str
) -> None:
    SHOWN.clear()
    mode = build("sync", shipped("sync", name), Sync, (), USUAL)
    if isinstance(mode, OneBitAdam):
        mode.warmup = 1  # in which it is sync=bsp
    mode.configure(replace(mode.setting, before_step=partial(SHOWN.append, 1)))
    make_optimizer = partial(torch.optim.Adam, lr=0.01) if mode.trial.optimizer else momentum
    plan = TrainingPlan(DataParallel(), mode, TrainingCase([[3, 3]] * 3, mlp, make_optimizer))
    virtual_workers(workers_of(plan), train, plan)
    assert (len(SHOWN) == 6) == mode.traits.shows_gradients
