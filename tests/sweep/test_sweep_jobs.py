"""Sweeps whose trials are jobs: they outlive their sweeper, and none is run twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from needs import needs_root, needs_slurm
from process_table import until
from short_runs import HERE, QUICK, clean_environment
from slurm_cluster import SlurmCluster
from submitted_runs import WAIT, workers_of

from paceline.tracking.job_files import JobEnd, JobNote

pytestmark = [pytest.mark.dist, pytest.mark.fault, pytest.mark.timeout(1800)]

JOBS = (
    "launcher=torchrun",
    "launcher.nodes=1",
    "launcher.workers_per_node=1",
    "strategy=sabotage",
    "hardware.threads=1",
)
OWN = ("--config-dir", str(HERE / "conf"), "--allow-module", "saboteur")


def sweep(root: Path, *words: str, **environment: str) -> "subprocess.Popen[bytes]":
    with (root / "said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "paceline.cli.main", "sweep", *words, "--name=wide", "--jobs=2"],
            cwd=root,
            env=clean_environment(root) | environment,
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


def test_a_detached_sweep_returns_at_once_and_runs_to_its_end(tmp_path: Path) -> None:
    words = (*QUICK, *JOBS, *OWN, "seed=1,2", "strategy.pause=0.1", "steps=60", "--detach")
    assert sweep(tmp_path, *words).wait(WAIT) == 0, (tmp_path / "said").read_text()
    folder = tmp_path / "runs" / "wide"
    said = (tmp_path / "said").read_text()
    assert "runs the trials" in said and not (folder / "report.html").exists()
    until(lambda: (folder / "report.html").exists(), WAIT, "no end: " + said)
    assert "2 of 2 done" in (folder / "sweep.log").read_text() and len(jobs(tmp_path)) == 2


def test_a_sweeper_that_is_asked_to_stop_stops_its_jobs(tmp_path: Path) -> None:
    sweeper = sweep(tmp_path, *QUICK, *JOBS, *OWN, "seed=1,2", "strategy.pause=0.1", "steps=100000")
    until(lambda: len(jobs(tmp_path)) == 2, WAIT, "no two jobs")
    sweeper.send_signal(signal.SIGINT)
    assert sweeper.wait(WAIT) == 130, (tmp_path / "said").read_text()
    pids = [int(id.partition("-")[0]) for id in jobs(tmp_path).values()]
    until(lambda: not any(_is_alive(pid) for pid in pids), WAIT, "supervisors are left")


@needs_slurm
@needs_root
@pytest.mark.xdist_group("slurm")
@pytest.mark.parametrize(
    ("trials", "sweepers", "workers"), [(5, 1, 2), pytest.param(40, 5, 20, marks=pytest.mark.slow)]
)
def test_a_sweep_on_slurm_loses_no_trial_and_runs_none_twice(
    tmp_path: Path, trials: int, sweepers: int, workers: int
) -> None:
    """Its sweeper is killed so many times, and so many workers of its jobs."""
    cluster, drawn = SlurmCluster(), random.Random(0)
    runs, seen = tmp_path / "runs" / "wide", dict[str, str]()
    nodes = ("launcher=slurm", "launcher.workers_per_node=1", "launcher.time=30m", *JOBS[3:])
    slow = ("strategy.pause=0.1", "steps=40", "checkpoint.every_steps=5", f"seed={','.join(map(str, range(trials)))}")

    def trains(run: Path) -> dict[int, int]:
        """The workers of a job that has made a checkpoint."""
        return workers_of(run) if any(run.glob("checkpoints/step-*/manifest.json")) else {}

    def wait(sweeper: "subprocess.Popen[bytes]", kills: int) -> None:
        """Kills so many workers."""
        for _ in range(kills):
            until(
                lambda: sweeper.poll() is not None or any(map(trains, runs.iterdir() if runs.is_dir() else ())),
                WAIT,
                "no job trains",
            )
            if found := [pid for run in sorted(runs.iterdir()) for pid in trains(run).values()]:
                with suppress(ProcessLookupError):
                    os.kill(drawn.choice(found), signal.SIGKILL)
            time.sleep(3)

    try:
        first = sweep(tmp_path, *QUICK, *nodes, *OWN, *slow, **cluster.environment)
        until(lambda: bool(jobs(tmp_path)), WAIT, "no job: " + (tmp_path / "said").read_text())
        for _ in range(sweepers):
            wait(first, workers // sweepers)
            first.kill()
            first.wait()
            seen |= {name: id for name, id in jobs(tmp_path).items() if name not in seen}
            first = sweep(tmp_path, "--resume", **cluster.environment)
        assert first.wait(1500) == 0, (tmp_path / "said").read_text()
        found = jobs(tmp_path)
        assert len(found) == trials and found.items() >= seen.items(), "a trial was submitted twice"
        ends = {name: JobEnd.read(runs / name) for name in found}
        assert all(end is not None and end.exit_code == 0 for end in ends.values())
        assert sum(end.lost for end in ends.values() if end is not None) >= workers // 2
        for name in found:
            summary = json.loads((runs / name / "summary.json").read_text())
            assert (summary["status"], summary["steps"]) == ("completed", 40)
    finally:
        cluster.stop()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
