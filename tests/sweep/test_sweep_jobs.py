"""Sweeps whose trials are jobs: they outlive their sweeper, and none is run twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_table import until
from short_runs import HERE, QUICK, clean_environment
from submitted_runs import WAIT

from paceline.tracking.job_files import JobNote

pytestmark = [pytest.mark.dist, pytest.mark.fault, pytest.mark.timeout(600)]

JOBS = (
    "launcher=torchrun",
    "launcher.nodes=1",
    "launcher.workers_per_node=1",
    "strategy=sabotage",
    "hardware.threads=1",
)
OWN = ("--config-dir", str(HERE / "conf"), "--allow-module", "saboteur")


def sweep(root: Path, *words: str) -> "subprocess.Popen[bytes]":
    with (root / "said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "paceline.cli.main", "sweep", *words, "--name=wide", "--jobs=2"],
            cwd=root,
            env=clean_environment(root),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )


def jobs(root: Path) -> dict[str, str]:
    """The job of each run of the sweep."""
    found = {path.parent.name: JobNote.read(path.parent) for path in (root / "runs" / "wide").glob("*/job.json")}
    return {name: note.id for name, note in found.items() if note is not None}


def test_a_killed_sweeper_finds_its_trials_running_and_runs_none_twice(tmp_path: Path) -> None:
    first = sweep(tmp_path, *QUICK, *JOBS, *OWN, "seed=1,2,3", "strategy.pause=0.1", "steps=60")
    until(lambda: len(jobs(tmp_path)) == 2, WAIT, "no two jobs: " + (tmp_path / "said").read_text())
    first.kill()
    first.wait()
    before = jobs(tmp_path)
    again = sweep(tmp_path, "--resume")
    assert again.wait(WAIT) == 0, (tmp_path / "said").read_text()
    after = jobs(tmp_path)
    assert before.items() <= after.items() and len(after) == 3
    for name in after:
        records = (tmp_path / "runs" / "wide" / name / "metrics.jsonl").read_text().splitlines()
        kinds = [json.loads(line)["kind"] for line in records]
        assert kinds.count("start") == 1, f"{name} was run twice"


def test_a_sweeper_that_is_asked_to_stop_stops_its_jobs(tmp_path: Path) -> None:
    sweeper = sweep(tmp_path, *QUICK, *JOBS, *OWN, "seed=1,2", "strategy.pause=0.1", "steps=100000")
    until(lambda: len(jobs(tmp_path)) == 2, WAIT, "no two jobs")
    sweeper.send_signal(signal.SIGINT)
    assert sweeper.wait(WAIT) == 130, (tmp_path / "said").read_text()
    pids = [int(id.partition("-")[0]) for id in jobs(tmp_path).values()]
    until(lambda: not any(_is_alive(pid) for pid in pids), WAIT, "supervisors are left")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
