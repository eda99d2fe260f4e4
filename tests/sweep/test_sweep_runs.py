"""What becomes of a sweep's trials: training is a stand-in here, and real in the tests at the end."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from process_table import until

from paceline.conf.errors import ConfigError
from paceline.engine.api.preparing import Prepared
from paceline.engine.api.session import Result
from paceline.engine.base.errors import DivergedError, InterruptedRunError, WorkerFailedError
from paceline.sweep.define import define
from paceline.sweep.definition import EarlyTermination
from paceline.sweep.directory import open_sweep
from paceline.sweep.study import SweepTrial, TrialRecord
from paceline.sweep.sweeper import Sweeper, run_name
from paceline.tracking.errors import StorageError
from paceline.tracking.run_directory import RunDirectory

TINY = ("epochs=1", "steps=4", "data.limit=64", "tracking=none", "checkpoint.every=0")
ONE = ("hardware.workers=1", "hardware.threads=1")


@dataclass
class LocalWorkers:
    """Stands in for the workers of a run."""

    stopped: threading.Event = field(default_factory=threading.Event)

    by: int = 0

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        self.by = number
        self.stopped.set()


@dataclass
class Run:
    """What a stand-in for training is given."""

    prepared: Prepared
    directory: RunDirectory
    sinks: list[Any]
    local_workers: LocalWorkers

    @property
    def seed(self) -> int:
        return self.prepared.experiment.seed

    def evaluated(self, accuracy: float) -> None:
        """An evaluation while it trains; ends the run when it is then to stop."""
        for sink in self.sinks:
            sink.record({"kind": "evaluation", "step": 1, "accuracy": accuracy, "loss": 1 - accuracy})
        if self.local_workers.stopped.is_set():
            raise InterruptedRunError("stopped", 143)


Training = Callable[[Run], dict[str, Any]]


def accurate(run: Run) -> dict[str, Any]:
    return {"accuracy": 0.5}


class Seen:
    """An observer."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.done: list[TrialRecord] = []

    def started(self, trial: SweepTrial, run: str) -> None:
        self.begun.append(run)

    def step(self, trial: SweepTrial, step: int, steps: int | None) -> None: ...
    def evaluated(self, trial: SweepTrial, record: dict[str, Any]) -> None: ...

    def ended(self, done: TrialRecord) -> None:
        self.done.append(done)


@dataclass
class Sweep:
    """A sweep whose training is `training`. Each `run` is as a command of its own."""

    root: Path
    monkeypatch: pytest.MonkeyPatch

    def run(
        self, training: Training, *words: str, jobs: int = 1, max_failures: int | None = None, **changes: Any
    ) -> Seen:
        def carry_out(prepared, plan, root, quiet, started, opened, close) -> Result:
            directory = RunDirectory.create(root, prepared.experiment.name)
            run = Run(prepared, directory, list(opened(directory)), LocalWorkers())
            started(run.local_workers)
            summary = {"name": directory.name, "status": "completed", "seed": run.seed, **training(run)}
            directory.write_summary(summary)
            directory.close()
            return Result(directory.path, summary)

        self.monkeypatch.setattr("paceline.sweep.sweeper.carry_out", carry_out)
        self.monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        definition = define([*words, *TINY], **changes)
        seen = Seen()
        with open_sweep("mine", definition, self.root, (self.root / "mine").exists()) as opened:
            self.sweeper = Sweeper("mine", opened.study, opened.directory, jobs, max_failures, seen)
            self.study = opened.study
            self.sweeper.run()
        return seen

    def directory(self, name: str) -> RunDirectory:
        return RunDirectory.open(self.root / "mine", name)

    def note(self, name: str) -> dict[str, Any]:
        return json.loads((self.root / "mine" / name / "trial.json").read_text())


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    return Sweep(tmp_path, monkeypatch)


def test_each_run_has_a_name_and_a_note_of_its_trial(sweep: Sweep) -> None:
    seen = sweep.run(accurate, "sync=bsp,ssp", "optimizer.lr=0.125", *ONE, "seed=4", seeds=2)
    assert seen.begun == ["0000-bsp-s4", "0000-bsp-s5", "0001-ssp-s4", "0001-ssp-s5"]
    assert sweep.note("0001-ssp-s5") == {"sweep": "mine", "trial": 1, "seed": 5, "parameters": {"sync": "ssp"}}
    assert [(done.trial.point, done.state, done.value) for done in seen.done] == [
        (point, "complete", 0.5) for point in (0, 0, 1, 1)
    ]
    assert [done.runs for done in seen.done] == [(name,) for name in seen.begun]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"sync": "ssp", "lr": 1e-05}, "0007-ssp-1e_05"),
        ({"model.hidden": "[32,16]"}, "0007-32_16"),
        ({"a": "'../up'", "b": "ü"}, "0007-.._up"),
        ({"a": "-0.5", "b": -2, "c": "0.5"}, "0007-minus0.5-minus2-0.5"),
        ({"a": "x" * 99}, f"0007-{'x' * 35}"),
    ],
)
def test_a_name_holds_only_what_a_name_may(values: dict[str, Any], name: str) -> None:
    trial = SweepTrial(9, 7, 1, values, (None,))
    assert run_name(trial, None) == name
    again = run_name(SweepTrial(9, 7, 3, values, (12,)), 12)
    assert again == f"{name}-s12-again2" and len(again) <= 64


@pytest.mark.slow
def test_a_sweeps_runs_on_wandb_are_one_group_of_trials_with_their_seed(sweep: Sweep) -> None:
    found: list[dict[str, Any]] = []

    def training(run: Run) -> dict[str, Any]:
        found.append(run.prepared.experiment.tracking)
        return {"accuracy": 0.5}

    words = ("sync=bsp,ssp", *ONE, "tracking=wandb", "tracking.mode=offline", "tracking.tags=[mine]")
    # TINY's tracking=none comes last: take its place
    definition = define([*words, *(word for word in TINY if not word.startswith("tracking"))], seeds=1)
    sweep.monkeypatch.setattr("test_sweep_runs.define", lambda *_, **__: definition)
    sweep.run(training)
    own, same = ({key: tracking[key] for key in ("group", "job_type", "tags")} for tracking in found)
    assert own == same == {"group": "mine", "job_type": "trial", "tags": ["mine", "seed-0"]}


def test_a_failing_trial_is_recorded_with_its_reason_and_the_rest_goes_on(sweep: Sweep) -> None:
    def training(run: Run) -> dict[str, Any]:
        if run.prepared.experiment.optimizer.knobs["lr"] == 0.2:
            raise DivergedError("the loss\nis NaN")
        return {"accuracy": 0.5}

    seen = sweep.run(training, "optimizer.lr=0.1,0.2,-1,0.3", *ONE)
    assert [done.state for done in seen.done] == ["complete", "failed", "failed", "complete"]
    diverged, refused = seen.done[1:3]
    assert (diverged.reason, diverged.exit_code) == ("the loss is NaN", 6)
    assert refused.reason.startswith("optimizer.lr=-1") and refused.exit_code == 2
    assert seen.begun == ["0000-0.1", "0001-0.2", "0003-0.3"], "what is refused never begins"
    for done in (diverged, refused):
        (name,) = done.runs
        (end,) = sweep.directory(name).records()
        assert end == {"kind": "end", "status": "failed", "reason": done.reason}
        assert sweep.note(name)["trial"] == done.trial.point and sweep.directory(name).read_summary() is None
    again = sweep.run(training, "optimizer.lr=0.1,0.2,-1,0.3", *ONE)
    assert again.begun == [] == again.done, "what failed by itself fails again"


LEAVING = """
import sys
from torch import nn

class Leaving(nn.Sequential):
    def __init__(self, width: int) -> None:
        if width % 2:
            sys.exit("an odd width")
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
"""


def test_a_class_that_leaves_by_sys_exit_ends_its_trial_alone(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    sweep.monkeypatch.syspath_prepend(tmp_path)

    def training(run: Run) -> dict[str, Any]:
        run.prepared.plan()
        return {"accuracy": 0.5}

    words = "model={_target_:leaving.Leaving,width:4}", "model.width=8,7,6"
    seen = sweep.run(training, *words, *ONE, allow_modules=("leaving",))
    assert [done.state for done in seen.done] == ["complete", "failed", "complete"]
    left = seen.done[1]
    assert left.exit_code == 4 and left.reason.startswith(
        "a class of yours left before the end: SystemExit: an odd width, in leaving."
    )


def test_a_failure_of_a_later_seed_is_noted_with_that_seed(sweep: Sweep) -> None:
    def training(run: Run) -> dict[str, Any]:
        if run.seed == 1:
            raise WorkerFailedError("worker 0 was killed", 4, [])
        return {"accuracy": 0.5}

    words = ("optimizer.lr=interval(0.1,0.2)", *ONE)
    seen = sweep.run(training, *words, method="random", trials=1, seeds=2)
    (done,) = seen.done
    assert done.state == "failed" and [name[-3:] for name in done.runs] == ["-s0", "-s1"]
    assert [sweep.note(name)["seed"] for name in done.runs] == [0, 1]
    # its workers were killed: that may go well the next time, and the seed that did is not run again
    again = sweep.run(accurate, *words, method="random", trials=1, seeds=2)
    assert [name[-10:] for name in again.begun] == ["-s1-again1"] and again.done[0].state == "complete"
    assert again.done[0].runs == (done.runs[0], again.begun[0])


def test_seeds_of_an_adaptive_search_are_averaged(sweep: Sweep) -> None:
    words = ("optimizer.lr=interval(0.1,0.2)", *ONE)
    seen = sweep.run(lambda run: {"accuracy": 0.5 + 0.25 * run.seed}, *words, trials=2, seeds=3)
    assert [(done.value, len(done.runs)) for done in seen.done] == [(0.75, 3)] * 2


def test_a_metric_that_no_run_has_ends_the_sweep_after_the_first(sweep: Sweep) -> None:
    with pytest.raises(ConfigError, match=r"metric acuracy: the results have no such number; did you mean accuracy"):
        sweep.run(accurate, "sync=bsp,ssp", "callbacks=[gradient_norm]", *ONE, metric="acuracy", maximize=True)
    assert [done.state for done in sweep.study.trials()] == ["running", "waiting"]


def test_a_metric_that_some_runs_have_fails_the_others_with_those_that_they_have(sweep: Sweep) -> None:
    def stale(run: Run) -> dict[str, Any]:
        return {"accuracy": 0.5} | ({"staleness": {"mean": 1.0}} if "ssp" in run.directory.name else {})

    seen = sweep.run(stale, "sync=bsp,ssp", *ONE, metric="staleness/mean", maximize=True)
    assert [done.state for done in seen.done] == ["failed", "complete"]
    assert seen.done[0].reason.startswith("metric staleness/mean: the results have no such number; there are ")
    assert " accuracy" in seen.done[0].reason and seen.done[0].runs == ("0000-bsp",)


def test_a_metric_of_a_callback_is_gone_by_under_the_name_that_the_comparison_has(sweep: Sweep) -> None:
    def training(run: Run) -> dict[str, Any]:
        return {"accuracy": 0.5, "metrics": {"mine": 2.0}}

    words = ("sync=bsp,ssp", "callbacks=[gradient_norm]", *ONE)
    seen = sweep.run(training, *words, metric="mine", maximize=True)
    assert [done.value for done in seen.done] == [2.0, 2.0]


@pytest.mark.parametrize("maximize", [False, True])
def test_a_time_to_accuracy_that_was_never_reached_is_the_worst_and_no_failure(maximize: bool, sweep: Sweep) -> None:
    times = {"bsp": None, "ssp": 3.0}

    def training(run: Run) -> dict[str, Any]:
        return {"accuracy": 0.5, "target_accuracy": 0.9, "time_to_accuracy": times[run.prepared.experiment.sync.name]}

    words = ("sync=bsp,ssp", "target_accuracy=0.9", *ONE)
    seen = sweep.run(training, *words, metric="time_to_accuracy", maximize=maximize)
    assert [done.state for done in seen.done] == ["complete", "complete"]
    worst = float("-inf") if maximize else float("inf")
    assert [done.value for done in seen.done] == [worst, 3.0]


def test_a_trial_that_is_not_among_the_best_is_given_up_and_says_so(sweep: Sweep) -> None:
    def training(run: Run) -> dict[str, Any]:
        accuracy = run.prepared.experiment.optimizer.knobs["lr"]
        for _ in range(4):
            run.evaluated(accuracy)
        return {"accuracy": accuracy}

    seen = sweep.run(training, "optimizer.lr=0.5,0.1,0.6", *ONE, early=EarlyTermination(2, 3))
    assert [(done.state, done.value) for done in seen.done] == [("complete", 0.5), ("pruned", None), ("complete", 0.6)]
    run = sweep.directory("0001-0.1")
    summary = run.read_summary()
    assert summary is not None and summary["status"] == "pruned" and summary["name"] == "0001-0.1"
    end = run.records()[-1]
    assert (end["kind"], end["status"]) == ("end", "pruned") and "not among the best" in end["reason"]
    assert sweep.run(training, "optimizer.lr=0.5,0.1,0.6", *ONE, early=EarlyTermination(2, 3)).begun == []


def test_two_jobs_overlap_where_there_are_cores(sweep: Sweep) -> None:
    both = threading.Barrier(2)

    def training(run: Run) -> dict[str, Any]:
        both.wait(60)  # for the other trial, which trains at this moment
        return {"accuracy": 0.5}

    seen = sweep.run(training, "sync=bsp,ssp", "hardware=virtual", jobs=2)
    assert {done.state for done in seen.done} == {"complete"} and len(seen.done) == 2


def test_two_jobs_take_turns_where_each_wants_all_cores(sweep: Sweep) -> None:
    most: list[int] = []
    active: list[str] = []

    def training(run: Run) -> dict[str, Any]:
        active.append(run.directory.name)
        most.append(len(active))
        if len(most) == 1:  # the other slot has come as far as it can
            until(lambda: sweep.sweeper._room._change._waiters, 60, "the other trial waits")  # pyright: ignore
        active.remove(run.directory.name)
        return {"accuracy": 0.5}

    words = ("optimizer.lr=0.1,0.2,0.3", "hardware.workers=2", "hardware.threads=1")
    assert len(sweep.run(training, *words, jobs=2).done) == 3 and most == [1, 1, 1]


def test_a_trial_that_ended_before_it_could_be_stopped_is_given_up_all_the_same(sweep: Sweep) -> None:
    def quick(run: Run) -> dict[str, Any]:
        """Is through before the mirror has handed over its evaluations."""
        final = 0.9 - 0.2 * int(run.directory.name[3])
        for accuracy in (final, 0.99):
            run.directory.append({"kind": "evaluation", "step": 1, "accuracy": accuracy, "loss": 0.1})
        return {"accuracy": 0.99}

    early = EarlyTermination(1, 3)
    seen = sweep.run(quick, "optimizer.lr=0.1,0.2,0.3,0.4", *ONE, early=early)
    assert [done.state for done in seen.done] == ["complete", "pruned", "pruned", "pruned"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_trial_stays_unfinished_and_is_run_again(number: int, code: int, sweep: Sweep) -> None:
    def training(run: Run) -> dict[str, Any]:
        if "ssp" in run.directory.name:
            os.kill(os.getpid(), number)
            assert run.local_workers.stopped.wait(60)
            assert run.local_workers.by == number
            os.kill(os.getpid(), number)  # `timeout` signals the process and then its group: that is one press
            raise InterruptedRunError("stopped", code)
        return {"accuracy": 0.5}

    before = signal.getsignal(number)
    with pytest.raises(InterruptedRunError, match="go on with: paceline sweep --resume --name mine") as error:
        sweep.run(training, "sync=bsp,ssp,asp", *ONE)
    assert error.value.exit_code == code and signal.getsignal(number) is before
    assert [done.state for done in sweep.study.trials()] == ["complete", "running", "waiting"]
    again = sweep.run(accurate, "sync=bsp,ssp,asp", *ONE)
    assert sorted(again.begun) == ["0001-ssp-again1", "0002-asp"]
    assert [done.state for done in sweep.study.trials()] == ["complete"] * 3
    assert not (sweep.root / "mine" / "0001-ssp").exists(), "what was not finished is no result"


def test_no_trial_begins_once_the_disk_is_full(sweep: Sweep) -> None:
    def training(run: Run) -> dict[str, Any]:
        raise StorageError("no space left on device")

    with pytest.raises(StorageError):
        sweep.run(training, "sync=bsp,ssp", *ONE)
    assert [done.state for done in sweep.study.trials()] == ["running", "waiting"]
    assert len(sweep.run(accurate, "sync=bsp,ssp", *ONE).done) == 2


# -- with real workers


def paceline(here: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {key: os.environ[key] for key in os.environ if not key.startswith(("WANDB_", "TORCHELASTIC_"))}
    command = [sys.executable, "-m", "paceline.cli.main", "sweep", *words]
    return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_exit_status_is_4_when_a_trial_failed_and_the_table_has_both(tmp_path: Path) -> None:
    done = paceline(tmp_path, "optimizer.lr=0.1,-1", *TINY, *ONE, "--name", "mine")
    assert done.returncode == 4, done.stderr
    rows = [row.split()[:2] for row in done.stdout.splitlines()]
    assert rows[1][0] == "0000-0.1" and ["0001-minus1", "(failed)"] in rows
    assert done.stderr.splitlines()[-1] == "1 of 2 trials failed"
    assert "trial 1 failed: optimizer.lr=-1" in done.stderr
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_bad_rate_is_given_up_early_for_real(tmp_path: Path) -> None:
    words = ("optimizer.lr=0.5,1e-9", "epochs=1500", "data.limit=200", "tracking=none", "checkpoint.every=0", *ONE)
    done = paceline(tmp_path, *words, "--prune", "2", "--name", "mine")
    assert done.returncode == 0, done.stderr
    bad = RunDirectory.open(tmp_path / "runs" / "mine", "0001-1e_09")
    summary = bad.read_summary()
    assert summary is not None and summary["status"] == "pruned"
    evaluations = sum(record["kind"] == "evaluation" for record in bad.records())
    assert 2 <= evaluations < 1500 and "0001-1e_09 (pruned)" in done.stdout
    assert "trial 0001-1e_09: pruned" in done.stderr


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(300)
def test_ctrl_c_leaves_a_sweep_that_resume_ends(tmp_path: Path) -> None:
    words = ("sync=bsp,asp", "epochs=1500", "data.limit=64", "tracking=none", "checkpoint.every=0", *ONE)
    command = [sys.executable, "-m", "paceline.cli.main", "sweep", *words, "--name", "mine"]
    first = RunDirectory(tmp_path / "runs" / "mine" / "0000-bsp")
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        until(lambda: first.metrics.exists() and len(first.records()) > 2, 120, "it trains")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "stopped by SIGINT; go on with: paceline sweep --resume --name mine"
    assert (first.read_summary() or {}).get("status") != "completed"
    done = paceline(tmp_path, "--resume", "--name", "mine")
    assert done.returncode == 0, done.stderr
    assert [row.split()[0] for row in done.stdout.splitlines()[1:]] == ["0000-bsp-again1", "0001-asp"]
    assert yaml.safe_load((tmp_path / "runs" / "mine" / "sweep.yaml").read_text())["method"] == "grid"
