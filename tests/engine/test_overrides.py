"""A stored configuration as the overrides that one would type."""

from typing import Any

import pytest
import yaml

from paceline.engine.compose import compose
from paceline.engine.experiment import to_yaml
from paceline.engine.grammar import as_override
from paceline.engine.overrides import overrides_of


def stored(*overrides: str) -> dict[str, Any]:
    return yaml.safe_load(to_yaml(compose(list(overrides))))


@pytest.mark.parametrize(
    "typed",
    [
        [],
        ["sync=ssp", "sync.staleness=7", "optimizer.lr=1e-05", "model.hidden=[64,32]", "hardware.workers=4"],
        ["tracking=none", "seed=3"],
        ["tracking.tags=[a,'b c']", "tracking.mode=offline"],
        ["hardware=virtual", "hardware/network=wide_area", "stragglers=lognormal", "hardware.overhead=0.5"],
        ["hardware=virtual", "hardware/network@hardware.inside=infiniband", "hardware.hosts_per_rack=2"],
        ["hardware=a100_8", "strategy=zero", "strategy.offload=all"],
        ["model=cnn", "data=fashion_mnist", "data.root='/with blank/it''s'"],
    ],
    ids=" ".join,
)
def test_they_compose_the_same_configuration_and_are_no_more_than_was_typed(typed):
    typed = [text.replace("''", r"\'") for text in typed]
    config = stored(*typed)
    found = overrides_of(config)
    assert stored(*found) == config
    assert len(found) == len(typed)


def test_a_preset_is_told_by_what_it_sets():
    config = stored("experiment=fashion_cnn")
    found = overrides_of(config)
    assert stored(*found) == config and {"model=cnn", "data=fashion_mnist"} <= set(found)


def test_the_runs_name_is_none_of_them():
    assert overrides_of(stored("name=first")) == []


def test_a_choice_of_the_users_own_is_named_with_all_its_keys():
    config = stored()
    config["model"] = {"name": "wide", "target": "mine.wide.Wide", "knobs": {"width": 512, "deep": None}}
    assert overrides_of(config) == ["model=wide", "model.width=512", "model.deep=null"]


@pytest.mark.parametrize("config", [{}, {"lr": 0.1}, {"strategy": "bsp"}])
def test_what_is_no_configuration_of_ours_is_an_error(config):
    with pytest.raises((KeyError, TypeError)):
        overrides_of(config)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -0.5, 1e-8, float("inf"), "plain/path.txt", "", "null", "True", "1e5", "3", "two words", "it's",
     "a\\", "a\\'b", "comma,=[]{}", "$x", "é", [1, [2.5, "x y"]], {"a": {"b": [None]}}],
    ids=repr,
)  # fmt: skip
def test_a_value_is_read_back_by_hydra(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert OverridesParser.create().parse_override(f"key={as_override(value)}").value() == value
