"""The ready sweeps: each point is one that the engine accepts, and each file runs in a shrunk form."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from paceline.engine.api.preparing import prepare
from paceline.engine.config.compose import compose
from paceline.sweep.define import define
from paceline.tracking.figures.built import check
from paceline.tracking.figures.request import asked
from paceline.tracking.sources import gather

ROOT = Path(__file__).parent.parent
SWEEPS = sorted((ROOT / "sweeps").rglob("*.yaml"))
STUDIES = sorted((ROOT / "sweeps" / "studies").glob("*.yaml"))
TABLES = sorted((ROOT / "docs" / "experiments").glob("*.csv"))
PAIRED = "easgd_downpour_asp"  # a study in which one key follows another
WITHOUT = ("weights=null",)  # those of a run that is made before
SHRUNK = (*WITHOUT, "epochs=1", "steps=2", "data.limit=64", "tracking=none", "checkpoint.every=0")
each = pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)


@each
def test_every_point_composes(path: Path) -> None:
    definition = define([str(path)])
    experiments = [compose(definition.overrides(point, None)) for point in definition.points()]
    assert len({experiment.model_dump_json() for experiment in experiments}) == definition.size()
    assert definition.size() > 1 or path in STUDIES, "alone it compares nothing"


@each
def test_the_points_at_both_ends_are_planned(path: Path) -> None:
    definition = define([str(path)])
    points = list(definition.points())
    for point in (points[0], points[-1]):
        assert prepare([*definition.overrides(point, None), *WITHOUT]).plan().layout.world_size >= 1


@each
def test_a_file_says_what_it_compares_and_goes_with_wandbs_agent(path: Path) -> None:
    assert (
        path.read_text().startswith("# ") and f"{path.relative_to(ROOT)}" in path.read_text().partition("program:")[0]
    )
    sweep = yaml.safe_load(path.read_text())
    assert sweep["program"] == "paceline" and sweep["metric"].keys() == {"name", "goal"}
    assert sweep["command"][:2] == ["${program}", "train"] and sweep["command"][-1] == "${args_no_hyphens}"


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "path", [path for path in SWEEPS if path not in STUDIES or path.stem == PAIRED], ids=lambda path: path.stem
)
def test_it_runs_in_a_shrunk_form(path: Path, tmp_path: Path) -> None:
    spare = {key: os.environ[key] for key in os.environ if not key.startswith(("WANDB_", "TORCHELASTIC_"))}
    text = path.read_text()
    needs_its_workers = "attack.workers" in text or "strategy=single" in text
    needs_its_workers |= "hardware.workers" in define([str(path)]).parameters
    few = [] if needs_its_workers else ["hardware.workers=2"]
    paceline = [sys.executable, "-m", "paceline.cli.main"]
    if "distillation.teacher=teacher" in text:
        teacher = [*paceline, "train", *SHRUNK, "hardware.workers=1", "--name", "teacher"]
        subprocess.run(teacher, cwd=tmp_path, env=spare, capture_output=True, check=True, timeout=200)
    command = [*paceline, "sweep", str(path), *SHRUNK, *few, "--trials", "2"]
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


# -- studies


def test_each_sync_mode_is_in_the_study_of_all() -> None:
    swept = [define([str(path)]) for path in STUDIES if path.stem.startswith("digits_64")]
    modes = [str(point["sync"]) for definition in swept for point in definition.points()]
    assert sorted(modes) == sorted(path.stem for path in (ROOT / "conf" / "sync").glob("*.yaml"))


@pytest.mark.parametrize("study", ["compression_digits", "compression_cnn", "compression_gpt"])
def test_each_compressor_is_in_the_study_or_the_page_says_why_it_is_not(study: str) -> None:
    swept = [define([str(path)]) for path in STUDIES if path.stem.startswith(study)]
    rules = {str(point["compress"]) for definition in swept for point in definition.points()}
    page = (ROOT / "docs" / "experiments" / "README.md").read_text()
    (section,) = [text for text in page.split("\n## ") if f"({study}.csv)" in text]
    left_out = " ".join(re.findall(r"[^.]*left out[^.]*", section))
    absent = {path.stem for path in (ROOT / "conf" / "compress").glob("*.yaml")} - rules
    assert absent == {name for name in re.findall(r"`(\w+)`", left_out)} & absent


def test_each_rule_with_error_feedback_is_in_its_study() -> None:
    swept = [define([str(path)]) for path in STUDIES if path.stem.startswith("error_feedback")]
    rules = {str(point["compress"]) for definition in swept for point in definition.points()}
    files = (ROOT / "conf" / "compress").glob("*.yaml")
    assert rules == {path.stem for path in files if "error_feedback" in yaml.safe_load(path.read_text())}


def test_downpour_fetches_when_it_pushes() -> None:
    definition = define([str(ROOT / "sweeps" / "studies" / f"{PAIRED}.yaml")])
    for point in definition.points():
        knobs = compose(definition.overrides(point, None)).sync.knobs
        assert knobs["fetch"] == knobs["push"] == int(point["sync.push"])


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_the_table_of_a_study_has_its_columns_and_what_its_figures_show(table: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    told = dict(re.findall(r"^(\w+) := (\S+)", makefile, flags=re.M))
    measured = told.get(f"MEASURED_{table.stem}", told["MEASURED"]).replace("$(MEASURED)", told["MEASURED"])
    columns = f"{told[f'CHOSEN_{table.stem}']},seed,modelled,{measured}"
    assert table.read_text().partition("\n")[0].removeprefix("run,") == columns
    runs = gather([str(table)], ROOT)
    requests = asked([str(ROOT / "sweeps" / "studies" / f"{table.stem}.yaml")])
    for request in requests:
        check(runs, request)
    pictures = [f"{'modelled-' if runs[0].summary['modelled'] else ''}{request.name}.png" for request in requests]
    assert pictures and all((table.parent / picture).is_file() for picture in pictures)


def test_each_study_of_the_makefile_has_sweeps_and_a_table() -> None:
    (names,) = re.findall(r"^STUDIES := (.*)", (ROOT / "Makefile").read_text(), flags=re.M)
    assert sorted(names.split()) == [table.stem for table in TABLES]
    assert {path.stem for path in STUDIES} >= {*names.split()}
    assert all(any(path.stem.startswith(name) for name in names.split()) for path in STUDIES)
