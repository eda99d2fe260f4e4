"""Every sweep names a run that the engine accepts, at each of its values."""

import itertools
from pathlib import Path

import pytest
import yaml

from paceline.engine.compose import compose

SWEEPS = sorted((Path(__file__).parent.parent / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_point_of_the_grid_composes(path: Path) -> None:
    sweep = yaml.safe_load(path.read_text())
    assert sweep["program"] == "paceline"
    assert sweep["command"] == ["${program}", "train", "${args_no_hyphens}"]
    keys, values = zip(*((key, choice["values"]) for key, choice in sweep["parameters"].items()), strict=True)
    for point in itertools.product(*values):
        compose([f"{key}={value}" for key, value in zip(keys, point, strict=True)])


def test_there_are_sweeps() -> None:
    assert SWEEPS
