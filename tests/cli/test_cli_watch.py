"""`paceline watch`, and the live view of `paceline train`, as a terminal sees them."""

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctrl_c
import pytest
import yaml

from paceline.engine.jobs import asking
from paceline.engine.jobs.scheduler import JobState
from paceline.sweep.definition import Definition, Values
from paceline.tracking.alive import held
from paceline.tracking.job_files import JobNote
from paceline.tracking.live import WorkerMetrics, write_live
from paceline.tracking.run_directory import RunDirectory

START = {
    "kind": "start",
    **{
        "name": "first",
        "steps": 9,
        "workers": 1,
        "strategy": "single",
        "sync": "bsp",
        "model": "mlp",
        "data": "digits",
    },
}


@pytest.fixture
def run(here: Path) -> RunDirectory:
    run = RunDirectory.create(here / "runs", "first")
    run.append(START)
    run.append({"kind": "step", "step": 3, "loss": 0.5, "samples_per_second": 100.0})
    return run


def test_once_says_how_a_run_is_and_exits_as_it_did(paceline, run: RunDirectory) -> None:
    ended = paceline("watch", "first", "--once")
    assert ended.status == 4 and "died: its launcher has gone without a word" in ended.out and ended.err == ""
    write_live(run.path, [WorkerMetrics(0, "worker", 0, 3, 2048, 1.0, 0.25, 5.0, "computing")])
    with held(run.metrics):
        ended = paceline("watch", "first", "--once")
        assert ended.status == 0 and ended.out.splitlines()[-1] == "running"
        assert "worker 0" in ended.out and "25%" in ended.out and "step 3 of 9" in ended.out
        told = json.loads(paceline("watch", "first", "--once", "--format", "json").out)
    assert told["state"] == "running" and told["last"]["loss"] == 0.5 and told["workers"][0]["sent"] == 2048
    for status, code in (("completed", 0), ("interrupted", 130), ("diverged", 6), ("failed", 4), ("pruned", 0)):
        run.write_summary({"name": "first", "status": status})
        assert paceline("watch", "first", "--once").status == code
    run.write_summary({"name": "first", "status": "completed", "accuracy": "high"})
    assert paceline("watch", "first", "--once").status == 7
    run.summary.write_text("{")
    assert paceline("watch", "first", "--once").status == 7


@pytest.mark.parametrize("options", [("--once",), ("--no-live",)])
def test_records_that_may_not_be_read_are_named(
    options: tuple[str, ...], paceline, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    run.write_summary({"name": "first", "status": "completed"})
    monkeypatch.setattr("paceline.tracking.run_directory.open_regular", refused)
    ended = paceline("watch", "first", *options)
    assert (ended.status, ended.last) == (7, f"{run.metrics} cannot be read (Permission denied)")


@pytest.fixture
def swept(here: Path) -> list[RunDirectory]:
    """Three of a sweep's four runs."""
    definition = Definition("grid", {"sync": Values(("bsp", "asp"))}, seeds=2)
    folder = here / "runs" / "both"
    runs = [RunDirectory.create(folder, name) for name in ("0000-bsp-s0", "0000-bsp-s1", "0001-asp-s0")]
    (folder / "sweep.yaml").write_text(yaml.safe_dump(definition.as_dict()))
    for run in runs:
        run.append(START)
        run.append({"kind": "step", "step": 3, "loss": 0.5, "samples_per_second": 100.0})
        run.append({"kind": "evaluation", "step": 3, "epoch": 1.0, "accuracy": 0.25, "loss": 0.5, "time": 1.0})
    return runs


def test_of_a_sweep_it_says_which_runs_have_ended_and_how_many_are_to_come(paceline, swept: list[RunDirectory]) -> None:
    for run in swept[:2]:
        run.write_summary({"name": run.name, "status": "completed"})
    with held(swept[2].metrics):
        ended = paceline("watch", "both", "--once")
        assert ended.status == 0 and ended.err == ""
        assert ended.out.splitlines()[-1] == "running: 2 of 4 runs ended (2 completed, 1 running)"
        assert "0001-asp-s0  running    step 3 of 9, loss 0.5000, accuracy 25.00%" in ended.out
        told = json.loads(paceline("watch", "runs/both", "--once", "--format", "json").out)
    assert (told["state"], told["ended"], told["wanted"], told["runs"][2]["step"]) == ("running", 2, 4, 3)
    swept[2].write_summary({"name": swept[2].name, "status": "completed"})
    ended = paceline("watch", "both")  # nobody is at work, and a run is missing
    assert ended.status == 130 and ended.last.endswith("; paceline sweep --resume --name both goes on with it")
    assert "0000-bsp-s1 completed: step 3 of 9, loss 0.5000, accuracy 25.00%; 3 of 4 ended" in ended.out


@pytest.mark.parametrize(("key", "number"), [("trials", "x"), ("seeds", [1]), ("seeds", 10**12)])
def test_a_sweeps_numbers_may_be_damaged(key: str, number: Any, paceline, swept: list[RunDirectory]) -> None:
    file = swept[0].path.parent / "sweep.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {key: number}))
    ended = paceline("watch", "both", "--once")
    assert ended.status == 130 and "runs ended (3 died)" in ended.out


def test_a_sweep_ends_as_its_runs_did(paceline, swept: list[RunDirectory]) -> None:
    more = RunDirectory.create(swept[0].path.parent, "0001-asp-s1")
    for status, code in (("completed", 0), ("pruned", 0), ("failed", 4), ("diverged", 4)):
        for run in (*swept, more):
            run.write_summary({"name": run.name, "status": "completed" if run is not more else status})
        ended = paceline("watch", "both", "--once")
        assert ended.status == code and "4 of 4 runs ended" in ended.out
    more.write_summary({"name": more.name, "status": "interrupted"})  # by Ctrl-C, as the last of its trials ran
    ended = paceline("watch", "both", "--once")
    assert ended.status == 130 and ended.out.splitlines()[-1] == (
        "interrupted: 3 of 4 runs ended (3 completed, 1 interrupted); "
        "paceline sweep --resume --name both goes on with it"
    )
    (swept[0].path.parent / "sweep.yaml").write_text("{")  # nobody knows how many there should be
    more.write_summary({"name": more.name, "status": "completed"})
    assert paceline("watch", "both", "--once").out.splitlines()[-1] == "completed: 4 runs ended (4 completed)"


def test_what_is_no_run_is_refused(paceline, run: RunDirectory) -> None:
    ended = paceline("watch", "frst")
    assert ended.status == 2 and "did you mean first" in ended.last
    assert paceline("watch", "first", "--format", "json").status == 2


def test_a_run_is_followed_until_it_ends(paceline, run: RunDirectory) -> None:
    def go_on() -> None:
        with held(run.metrics):
            holds.set()
            run.append({"kind": "evaluation", "step": 9, "accuracy": 0.75, "loss": 0.1})
            run.append({"kind": "end", "status": "failed", "reason": "worker 0 failed"})

    holds = threading.Event()
    other = threading.Thread(target=go_on)
    other.start()
    holds.wait(10)
    ended = paceline("watch", "first")
    other.join()
    assert ended.status == 4 and ended.last == "failed: worker 0 failed"
    assert "step 9  accuracy 75.00%" in ended.out.splitlines()


def on_a_terminal(
    here: Path, arguments: list[str], press: bytes = b"", when: bytes = b"", **environment: str
) -> tuple[int, str]:
    """The exit status and all that was shown. `press`: typed once the text `when` was seen."""
    command = [sys.executable, "-m", "paceline.cli.main", *arguments]
    process, ours = pty.fork()
    if process == 0:
        ctrl_c.can_come()
        os.chdir(here)
        os.execve(sys.executable, command, {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment})
    seen, deadline = b"", time.monotonic() + 100
    while time.monotonic() < deadline:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        seen += chunk
        if press and when in seen:
            os.write(ours, press)
            press = b""
    _, status = os.waitpid(process, 0)
    os.close(ours)
    return os.waitstatus_to_exitcode(status), seen.decode()


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_terminal_shows_a_view_and_ctrl_c_leaves_it_as_it_was(here: Path) -> None:
    long = ["train", "tracking=none", "steps=100000", "--name", "mine"]
    status, seen = on_a_terminal(here, long, press=b"\x03", when=b"worker 1")
    assert status == 130 and "stopped by SIGINT; saved: step-" in seen.splitlines()[-1]
    assert "step ms" in seen and "of 100,000" in seen and "\x1b[?25l" not in seen and "Traceback" not in seen
    narrow: dict[str, Any] = {
        "COLUMNS": "40",
        "NO_COLOR": "1",
        "PYTHONIOENCODING": "ascii",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
    }
    status, seen = on_a_terminal(here, ["train", "tracking=none", "steps=300", "--name", "narrow"], **narrow)
    assert status == 0 and "step 300 of 300" in seen and "\x1b[3" not in seen and "UnicodeEncodeError" not in seen
    status, seen = on_a_terminal(here, ["train", "tracking=none", "steps=30", "--no-live", "--name", "plain"])
    assert status == 0 and "\x1b[" not in seen and "step 30  accuracy" in seen


def test_a_job_that_was_killed_with_its_supervisor_is_followed_to_its_death(
    paceline, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    JobNote("slurm", "12", "login", "2026-01-01T00:00:00").write(run.path)
    monkeypatch.setattr(asking, "scheduler_for", lambda *_: SimpleNamespace(look=lambda id: JobState("over", "FAILED")))
    monkeypatch.setattr(asking, "SETTLES", 0.0)
    ended = paceline("watch", "first")
    assert ended.status == 4 and ended.err.splitlines()[-1] == "died: job 12 of slurm is over and did not say how"
    once = paceline("watch", "first", "--once")
    assert once.status == 4 and once.out.splitlines()[-1] == "died: job 12 of slurm is over and did not say how"
    assert paceline("logs", "first", "--follow").status == 0


def test_a_job_that_nobody_can_be_asked_about_is_watched_to_a_sentence(paceline, run: RunDirectory) -> None:
    JobNote("slurm", "12", "login", "2026-01-01T00:00:00").write(run.path)  # and there is no config.yaml
    ended = paceline("watch", "first")
    assert (
        ended.status == 2 and "config.yaml is not there" in ended.err.splitlines()[-1] and "Traceback" not in ended.err
    )


@pytest.mark.parametrize("file", ["metrics.jsonl", "job.json"])
def test_a_damaged_run_of_a_sweep_is_one_of_its_lines(file: str, paceline, here: Path) -> None:
    (here / "runs" / "swept").mkdir(parents=True)
    (here / "runs" / "swept" / "sweep.yaml").write_text("method: grid\n")
    for name in ("a", "b"):
        made = RunDirectory.create(here / "runs" / "swept", name)
        made.write_config("name: x\n")
        made.append({"kind": "end", "status": "completed"})
        made.close()
    (here / "runs" / "swept" / "a" / file).unlink(missing_ok=True)
    os.mkfifo(here / "runs" / "swept" / "a" / file)
    ended = paceline("watch", "swept", "--once")
    assert ended.status == 4 and "1 damaged, 1 completed" in ended.out and "is a named pipe" in ended.out


def test_logs_are_regular_files(paceline, run: RunDirectory) -> None:
    os.mkfifo(run.path / "logs" / "worker-001.log")
    (run.path / "logs" / "worker-002.log").symlink_to("/dev/zero")
    (run.path / "logs" / "worker-x.log").write_text("one\x1b[2J\n")
    ended = paceline("logs", "first")
    assert ended.status == 0 and ended.out == "worker-x: one\\x1b[2J\n"
    assert paceline("logs", "first", "--worker", "7").status == 2


@pytest.mark.parametrize(
    ("state", "said"),
    [(JobState("waiting", "PENDING (Resources)"), "PENDING (Resources)"), (None, "the scheduler cannot be reached")],
)
def test_a_look_at_a_job_says_what_the_scheduler_says(
    state: JobState | None, said: str, paceline, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    JobNote("slurm", "12", "login", "2026-01-01T00:00:00").write(run.path)
    monkeypatch.setattr(asking, "scheduler_for", lambda *_: SimpleNamespace(look=lambda id: state))
    once = paceline("watch", "first", "--once")
    assert once.status == 0 and once.out.splitlines()[-1] == f"submitted: job 12 of slurm, {said}"


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(240)
def test_a_run_that_is_killed_is_watched_to_its_death(here: Path) -> None:
    command = [sys.executable, "-m", "paceline.cli.main"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    long = [*command, "train", "tracking=none", "steps=1000000", "--name", "mine"]
    with subprocess.Popen(long, cwd=here, **quiet) as trainer:
        live = here / "runs" / "mine" / "live.json"
        deadline = time.monotonic() + 60
        while not live.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert live.exists()
        once = subprocess.run([*command, "watch", "mine", "--once"], cwd=here, capture_output=True, text=True)
        assert once.returncode == 0 and once.stdout.endswith("running\n") and "worker 1" in once.stdout
        watching = subprocess.Popen([*command, "watch", "mine"], cwd=here, stderr=subprocess.PIPE, text=True)
        trainer.send_signal(signal.SIGKILL)
        _, told = watching.communicate(timeout=60)
    assert watching.returncode == 4 and told.splitlines()[-1].startswith("died: ")


@pytest.mark.parametrize("once", [(), ("--once",)])
def test_records_of_somebody_elses_are_neither_obeyed_nor_a_mistake(
    once: tuple[str, ...], paceline, run: RunDirectory
) -> None:
    odd: list[dict[str, Any]] = [{"step": 4}, {"kind": "step", "step": "x"}, {"kind": "evaluation", "step": [1]}]
    with run.metrics.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in odd)
    run.append({"kind": "stop", "reason": "\x1b[2Jgone"})
    ended = paceline("watch", "first", *once)
    assert ended.status == 4 and "\x1b" not in ended.out + ended.err
    assert once or ("stopping: \\x1b[2Jgone" in ended.out and "are no records of this version" in ended.err)
