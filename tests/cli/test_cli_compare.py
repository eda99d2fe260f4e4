"""`paceline compare` over run directories."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.tracking.run_directory import RunDirectory


@pytest.fixture
def runs(here: Path) -> Path:
    """Three runs: `slow`, `fast`, and `going`, which has not ended; made in this order."""
    for age, (name, throughput, accuracy) in enumerate([("slow", 100.0, 0.9), ("fast", 400.0, 0.8)]):
        run = RunDirectory.create(here / "runs", name)
        run.write_summary(
            {
                "name": name,
                "status": "completed",
                "model": "mlp",
                "data": "digits",
                "strategy": "data_parallel",
                "sync": "bsp",
                "workers": 2,
                "throughput": throughput,
                "accuracy": accuracy,
            }
        )
        os.utime(run.metrics, (age, age))
    RunDirectory.create(here / "runs", "going").append({"kind": "start", "sync": "asp", "workers": 4})
    return here / "runs"


def names(out: str) -> list[str]:
    return [row["run"] for row in json.loads(out)]


def test_without_names_every_run_is_there_the_latest_last(paceline, runs: Path) -> None:
    assert names(paceline("compare", "--format", "json").out) == ["slow", "fast", "going"]


def test_named_runs_keep_their_order_and_may_be_paths(paceline, runs: Path) -> None:
    assert names(paceline("compare", "fast", "runs/slow", "--format", "json").out) == ["fast", "slow"]


def test_sort_puts_the_best_first_and_reverse_the_worst(paceline, runs: Path) -> None:
    assert names(paceline("compare", "--sort", "accuracy", "--format", "json").out) == ["slow", "fast", "going"]
    ended = paceline("compare", "--sort", "throughput", "--reverse", "--format", "json")
    assert names(ended.out) == ["slow", "fast", "going"]
    assert names(paceline("compare", "--sort", "throughput", "--format", "json").out) == ["fast", "slow", "going"]


def test_a_baseline_that_was_not_named_joins_the_table(paceline, runs: Path) -> None:
    rows = json.loads(paceline("compare", "fast", "--baseline", "slow", "--format", "json").out)
    assert [(row["run"], row["speedup_throughput"]) for row in rows] == [("slow", 1.0), ("fast", 4.0)]


def test_the_formats_tell_the_same(paceline, runs: Path) -> None:
    rows = json.loads(paceline("compare", "--format", "json").out)
    from_csv = list(csv.DictReader(paceline("compare", "--format", "csv").out.splitlines()))
    assert [row["throughput_samples_per_s"] for row in from_csv] == ["100.0", "400.0", ""]
    for format, mark in (("table", ""), ("markdown", "| ")):
        lines = paceline("compare", "--format", format).out.splitlines()
        body = lines[-3:]
        assert [line.removeprefix(mark).split()[0] for line in body] == [row["run"] for row in rows]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["compare", "fats"], "did you mean fast"),
        (["compare", "--baseline", "slw"], "did you mean slow"),
        (["compare", "--sort", "acuracy"], "did you mean accuracy"),
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_refused_with_the_nearest(arguments: list[str], hint: str, paceline, runs: Path) -> None:
    ended = paceline(*arguments)
    assert (ended.status, ended.out) == (2, "") and hint in ended.last


def test_without_any_run_it_says_how_to_get_one(paceline) -> None:
    ended = paceline("compare")
    assert (ended.status, ended.out) == (2, "") and "paceline train" in ended.last


@pytest.mark.parametrize("content", ["{", '{"name": "slow", "throughput": "fast"}'], ids=["truncated", "wrong type"])
def test_a_damaged_run_is_a_row_when_found_and_an_error_when_named(content: str, paceline, runs: Path) -> None:
    (runs / "slow" / "summary.json").write_text(content)
    ended = paceline("compare")
    assert ended.status == 0 and "slow (damaged)" in ended.out and "fast" in ended.out
    assert names(paceline("compare", "--format", "json").out) == ["slow", "fast", "going"]
    for arguments in (["slow"], ["fast", "slow"], ["fast", "--baseline", "slow"]):
        ended = paceline("compare", *arguments)
        assert (ended.status, ended.out) == (7, "") and "slow/summary.json" in ended.last
    assert paceline("compare", "fast").status == 0


def test_a_reader_that_leaves_early_is_no_error(runs: Path, here: Path) -> None:
    command = [sys.executable, "-m", "paceline.cli.main", "compare"]
    process = subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(30) == 0
