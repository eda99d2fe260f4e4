"""A sweep's sweepers as one job array of SLURM: they share its study, and run no trial twice."""

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from needs import needs_root, needs_slurm
from process_table import until
from short_runs import HERE, QUICK, clean_environment
from slurm_cluster import SlurmCluster
from submitted_runs import WAIT

from paceline.conf.errors import ConfigError
from paceline.engine.jobs import slurm
from paceline.engine.jobs.scheduler import JobState
from paceline.engine.jobs.slurm import Slurm
from paceline.sweep.array import job_array
from paceline.sweep.define import define
from paceline.sweep.directory import DATABASE, open_sweep
from paceline.sweep.storage import turns_of
from paceline.tracking.job_files import JobNote

WORDS = ("tracking=none", "launcher=slurm", "launcher.time=30m", "launcher.extra=[--exclusive]", "optimizer.lr=1,2")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slurm, "check", lambda self: None)


@pytest.mark.usefixtures("unchecked")
def test_the_script_of_an_array_has_a_task_for_each_sweeper(tmp_path: Path) -> None:
    text = job_array(tmp_path / "wide", define([*WORDS])).text(3, ["--sampler", "tpe"])
    assert text.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=paceline-wide",
        *(f"#SBATCH --{option}" for option in ("nodes=1", "ntasks-per-node=2", "cpus-per-task=1", "time=30")),
        f"#SBATCH --output={tmp_path / 'wide'}/sweep-%a.log",
        *(f"#SBATCH --{option}" for option in ("open-mode=append", "requeue", "signal=B:USR1@90", "array=0-2")),
        "#SBATCH --exclusive",
        f"exec {sys.executable} -P -m paceline.cli.main sweep --resume --name wide --sampler tpe --array-task",
    ]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tracking=none", "sync=bsp,asp"), "--array: launcher=auto has no job arrays. Choose launcher=slurm"),
        (("launcher=torchrun", "sync=bsp,asp"), "--array: launcher=torchrun has no job arrays. Choose launcher=slurm"),
        (("launcher=slurm", "launcher.nodes=1,2"), "launcher.nodes: is swept, and all sweepers of --array ask for"),
        (("launcher=slurm,auto", "seed=1"), "launcher: is swept, and all sweepers of --array ask for"),
    ],
)
def test_sweepers_that_make_no_array_are_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        job_array(tmp_path / "wide", define([*words]))
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(("state", "said"), [("PENDING", r"goes on \(PENDING\)"), (None, "SLURM cannot be asked")])
def test_a_sweep_is_not_resumed_beside_its_array(
    state: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_begun(tmp_path) / "array").write_text("77\n")
    found = None if state is None else JobState("waiting", state)
    monkeypatch.setattr(Slurm, "look", lambda self, id: found if id == "77" else pytest.fail(id))
    with pytest.raises(ConfigError, match=said), open_sweep("wide", None, tmp_path, resume=True):
        pass


def test_an_array_is_over_once_all_of_its_tasks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*lines: str) -> JobState | None:
        said = subprocess.CompletedProcess([], 0, "\n".join(lines), "")
        monkeypatch.setattr(slurm, "_run", lambda _: said)
        return Slurm().look("77")

    assert looked("COMPLETED|None", "RUNNING|None", "PENDING|Resources") == JobState("running", "RUNNING")
    assert looked("COMPLETED|None", "CANCELLED|None") == JobState("over", "COMPLETED")


def _begun(root: Path, trials: int = 2) -> Path:
    definition = define(["tracking=none", f"seed={','.join(map(str, range(trials)))}"])
    with open_sweep("wide", definition, root, resume=False) as opened:
        turns_of(opened.directory / DATABASE).touch()
        return opened.directory


def _claim(root: Path, task: str, start: Barrier) -> list[int]:
    with open_sweep("wide", None, root, resume=True, task=task) as opened:
        start.wait()
        found = list(iter(opened.study.next, None))
        assert not opened.study.awaited()
        return [trial.point for trial in found if trial is not None]


def _claimed(root: Path, task: str, start: Barrier, file: Path) -> None:
    file.write_text(json.dumps(_claim(root, task, start)))


def test_sweepers_of_an_array_claim_each_trial_once(tmp_path: Path) -> None:
    _begun(tmp_path, 12)
    context = multiprocessing.get_context("fork")
    start = context.Barrier(3)
    files = [tmp_path / f"{i}.json" for i in range(3)]
    sweepers = [context.Process(target=_claimed, args=(tmp_path, f"7_{i}", start, files[i])) for i in range(3)]
    for each in sweepers:
        each.start()
    for each in sweepers:
        each.join()
    found = [json.loads(file.read_text()) for file in files]
    assert sorted(point for points in found for point in points) == list(range(12))
    with open_sweep("wide", None, tmp_path, resume=True, task="7_1") as opened:
        assert [done.trial.point for done in opened.study.left_over()] == found[1], "others' are not its own"
    with open_sweep("wide", None, tmp_path, resume=True) as opened:
        assert len(opened.study.left_over()) == 12, "there are no others once it has the sweep for itself"


# -- on a real SLURM


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    made = SlurmCluster()
    yield made
    made.stop()


@needs_slurm
@needs_root
@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.xdist_group("slurm")
@pytest.mark.timeout(900)
def test_an_array_of_two_loses_no_trial_and_runs_none_twice(tmp_path: Path, cluster: SlurmCluster) -> None:
    """One of its two sweepers is warned of its limit in its first trial, is put back, and goes on with it."""
    runs = tmp_path / "runs" / "wide"

    def sweep(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "paceline.cli.main", "sweep", *words, "--name=wide", "--array=2"],
            cwd=tmp_path,
            env=clean_environment(tmp_path) | cluster.environment,
            capture_output=True,
            text=True,
            timeout=WAIT,
        )

    def said() -> str:
        return "\n".join(file.read_text() for file in sorted(runs.glob("sweep-*.log")))

    def records(run: Path, kind: str) -> list[dict[str, object]]:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    slow = ("strategy=sabotage", "strategy.pause=0.1", "steps=60", "checkpoint.every_steps=50000", "seed=1,2,3,4")
    nodes = ("launcher=slurm", "launcher.workers_per_node=1", "launcher.time=30m", "launcher.extra=[--exclusive]")
    own = ("--config-dir", str(HERE / "conf"), "--allow-module", "saboteur")
    submitted = sweep(*QUICK, *slow, *nodes, "hardware.threads=1", *own)
    assert submitted.returncode == 0, submitted.stderr
    id = (runs / "array").read_text().strip()
    refused = sweep("--resume")
    assert refused.returncode == 2 and f"job array {id} goes on" in refused.stderr, refused.stderr
    first = f"{id}_0"

    def is_training() -> bool:
        """Returns True if the first of the two sweepers is in the middle of a trial."""
        open_runs = [run for run in runs.glob("0*") if not (run / "summary.json").exists()]
        notes = {run: JobNote.read(run) for run in open_runs if len(records(run, "step")) > 9}
        return any(note is not None and note.id == first for note in notes.values())

    until(is_training, WAIT, f"it does not train: {said()}")
    cluster.ask("scancel", "--signal=USR1", "--batch", first)
    until(lambda: cluster.state(first) == "PENDING", WAIT, f"it is not put back: {said()}")
    cluster.ask("scontrol", "update", f"JobId={first}", "StartTime=now")
    until((runs / "report.html").exists, WAIT, f"no end: {said()}")
    found = sorted(runs.glob("0*"))
    assert len(found) == 4, said()
    for run in found:
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["status"], summary["steps"]) == ("completed", 60)
        assert [each["step"] for each in records(run, "step")] == list(range(1, 61)), "a step was made twice, or lost"
    assert sorted(len(records(run, "start")) for run in found) == [1, 1, 1, 2]
    assert sweep("--resume").returncode == 0
