"""The ready sweeps: each point is one that the engine accepts, and each file runs in a shrunk form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from paceline.engine.compose import compose
from paceline.engine.session import prepare
from paceline.sweep.definition import define

SWEEPS = sorted((Path(__file__).parent.parent / "sweeps").glob("*.yaml"))
SHRUNK = ("epochs=1", "steps=2", "data.limit=64", "tracking=none", "checkpoint.every=0")
each = pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)


@each
def test_every_point_composes(path: Path) -> None:
    definition = define([str(path)])
    experiments = [compose(definition.overrides(point, None)) for point in definition.points()]
    assert len({experiment.model_dump_json() for experiment in experiments}) == definition.size() > 1


@each
def test_the_points_at_both_ends_are_planned(path: Path) -> None:
    definition = define([str(path)])
    first, *_, last = definition.points()
    for point in (first, last):
        assert prepare(definition.overrides(point, None)).plan().layout.world_size >= 1


@each
def test_a_file_says_what_it_compares_and_goes_with_wandbs_agent(path: Path) -> None:
    assert path.read_text().startswith("# ") and f"sweeps/{path.name}" in path.read_text().partition("program:")[0]
    sweep = yaml.safe_load(path.read_text())
    assert sweep["program"] == "paceline" and sweep["metric"].keys() == {"name", "goal"}
    assert sweep["command"][:2] == ["${program}", "train"] and sweep["command"][-1] == "${args_no_hyphens}"


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(400)
@each
def test_it_runs_in_a_shrunk_form(path: Path, tmp_path: Path) -> None:
    spare = {key: os.environ[key] for key in os.environ if not key.startswith(("WANDB_", "TORCHELASTIC_"))}
    few = ["hardware.workers=2"] if "hardware.workers" not in define([str(path)]).parameters else []
    command = [sys.executable, "-m", "paceline.cli.main", "sweep", str(path), *SHRUNK, *few, "--trials", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=spare, capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3, "a header and two rows"
    directory = tmp_path / "runs" / path.stem
    assert f"its report: runs/{path.stem}/report.html" in done.stderr
    assert (directory / "report.html").read_text().lstrip().lower().startswith("<!doctype html")
    assert len(list(directory.glob("*/summary.json"))) == len(list(directory.glob("*/trial.json"))) == 2


def test_there_are_sweeps() -> None:
    assert {"sync_modes", "strategies", "local_sgd_period", "rate_and_workers", "staleness_and_stragglers"} <= {
        path.stem for path in SWEEPS
    }
