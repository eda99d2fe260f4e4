"""Runs that earlier versions wrote stay readable.

`runs_of_before/` has a directory for each, named by its commit, as that version wrote it: without weights and logs.
"""

import json
import shutil
from pathlib import Path

import pytest

RUNS = sorted(path.name for path in (Path(__file__).parent / "runs_of_before").iterdir())


@pytest.fixture
def old(here: Path) -> Path:
    shutil.copytree(Path(__file__).parent / "runs_of_before", here / "runs")
    return here


@pytest.mark.parametrize("run", RUNS)
def test_ls_show_diff_and_the_command_read_a_run_of_before(run: str, paceline, old: Path) -> None:
    listed = paceline("ls")
    assert listed.status == 0 and listed.err == "" and run in listed.out and "completed" in listed.out
    shown = paceline("show", run)
    assert shown.status == 0 and shown.err == "" and "data_parallel" in shown.out and "predicted  measured" in shown.out
    command = paceline("show", run, "--command")
    assert command.status == 0 and "model.hidden=[2048,1024]" in command.out and "batch_size=256" in command.out
    itself = paceline("diff", run, run)
    assert itself.status == 0 and "the same" in itself.out


@pytest.mark.parametrize("run", RUNS)
def test_compare_and_the_report_read_a_run_of_before(run: str, paceline, old: Path) -> None:
    [row] = json.loads(paceline("compare", run, "--format", "json").out)
    summary = json.loads((old / "runs" / run / "summary.json").read_text())
    assert (row["run"], row["status"], row["accuracy"]) == (run, "completed", summary["accuracy"])
    assert row["throughput_samples_per_s"] == summary["throughput"] > 0 and row["freeze"] == "none"
    compared = paceline("compare", run, "--html", "report.html")
    assert compared.status == 0 and run in compared.out and "damaged" not in compared.err
    report = paceline("report", run, "--html", "page.html")
    assert report.status == 0 and run in (old / "report.html").read_text() and run in (old / "page.html").read_text()


@pytest.mark.parametrize("run", RUNS)
def test_a_configuration_of_before_can_be_trained_again(run: str, paceline, old: Path) -> None:
    again = paceline("plan", "--config", f"runs/{run}/config.yaml", "--format", "json")
    assert again.status == 0 and json.loads(again.out)["steps"] == 24
