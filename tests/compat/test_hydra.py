"""Hydra's own way of changing what it has composed."""

from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser

from paceline.compat.hydra import apply_overrides

VALUES = [
    "optimizer.lr=0.5",
    "++optimizer.momentum=0.25",
    "+tracking.new=1",
    "data.limit=32",
    "~optimizer.weight_decay",
]


def test_overrides_that_are_applied_afterwards_do_what_they_do_in_a_composition() -> None:
    with initialize_config_module("paceline.conf", version_base="1.3"):
        whole = compose("config", overrides=["sync=asp", *VALUES])
        later = compose("config", overrides=["sync=asp"], return_hydra_config=True)
    apply_overrides(OverridesParser.create().parse_overrides(VALUES), later)
    assert {key: later[key] for key in whole} == whole, (
        "Hydra applies overrides in another way: a composition from what was kept differs from one from the files"
    )
    assert whole.optimizer.lr == 0.5
