"""Standard streams that are closed or full, and SIGTERM outside training: real processes."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ctrl_c
import pytest

from paceline.cli.error_document import document
from paceline.cli.importing import STOPPED_BY_CTRL_C
from paceline.tracking.run_directory import RunDirectory

PACELINE = [sys.executable, "-m", "paceline.cli.main"]
QUICK = ["train", "tracking=none", "data.limit=200", "epochs=1", "checkpoint.every=0", "hardware.workers=1"]
HELD = """
import os, sys
from paceline.cli.main import main

def held(*_, **__):
    kinds = [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)]
    inherited = [os.get_inheritable(number) for number in (0, 1, 2)]
    streams = [stream is not None and stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
    open("held", "w").write(repr((kinds, inherited, streams)))

sys.argv = ["paceline", "compare"]
main.__globals__["app"] = held
main()
"""


def slow(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def closing(redirection: str, *command: str, here: Path) -> subprocess.CompletedProcess[str]:
    """The command, started by a shell that closes or redirects some of its standard streams."""
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command]
    return subprocess.run(shell, cwd=here, capture_output=True, text=True, timeout=110)


@pytest.mark.parametrize(
    "redirection", [pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-")] + ["<&- >&- 2>&-"]
)
def test_a_closed_stream_is_the_null_device_here_and_in_children(redirection: str, here: Path) -> None:
    assert closing(redirection, sys.executable, "-c", HELD, here=here).returncode == 0
    kinds, inherited, streams = eval((here / "held").read_text())
    closed = {"<": 0, ">": 1, "2": 2}
    assert all(kinds[closed[part[0]]] == os.devnull for part in redirection.split())
    assert inherited == [True] * 3 and streams == [0, 1, 2]


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_with_closed_streams_is_a_run(redirection: str, here: Path) -> None:
    done = closing(redirection, *PACELINE, *QUICK, "--name", "mine", here=here)
    assert done.returncode == 0, done.stderr
    assert (here / "runs" / "mine" / "summary.json").is_file()


@pytest.mark.parametrize("arguments", [["list"], *slow(["--help"], ["train", "--dry-run"])], ids=" ".join)
def test_results_that_cannot_be_written_are_told_in_a_sentence(arguments: list[str], here: Path) -> None:
    done = closing(">/dev/full", *PACELINE, *arguments, here=here)
    assert (done.returncode, done.stderr) == (3, "cannot write to standard output: No space left on device\n")


def test_a_full_standard_error_changes_no_exit_status(here: Path) -> None:
    done = closing("2>/dev/full", *PACELINE, "train", "epochs=0", here=here)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.dist
@pytest.mark.slow
def test_a_run_whose_row_cannot_be_written_says_where_it_is(here: Path) -> None:
    done = closing(">/dev/full", *PACELINE, *QUICK, "--name", "mine", here=here)
    assert done.returncode == 3 and "everything of this run: runs/mine" in done.stderr
    assert done.stderr.splitlines()[-1] == "cannot write to standard output: No space left on device"


STARTING = """
import os, signal, sys
from paceline import engine
from paceline.cli.main import main

def prepare(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError("it went on")

engine.run = prepare
sys.argv = ["paceline", "train"]
main()
"""


def test_sigterm_before_training_is_told_in_one_line(here: Path) -> None:
    done = subprocess.run([sys.executable, "-c", STARTING], cwd=here, capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == "stopped by SIGTERM while no worker was training; what is in the run directory stays\n"
    assert not list(here.iterdir())


LEAVING = """
import atexit, os, signal, sys
from paceline.cli.main import main

atexit.register(lambda: os.kill(os.getpid(), signal.{name}))
sys.argv = ["paceline", "list", "--help"]
main()
"""


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow)])
def test_a_signal_on_the_way_out_leaves_no_traceback(here: Path, name: str) -> None:
    command = [sys.executable, "-c", LEAVING.format(name=name)]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.Signals[name], "")


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("way", [[], ["nohup"]])
def test_a_run_saves_when_its_terminal_is_closed_and_goes_on_under_nohup(here: Path, way: list[str]) -> None:
    command = [*way, *PACELINE, "train", "tracking=none", f"steps={400 if way else 100_000}", "--name=mine"]
    process, ours = pty.fork()
    if process == 0:
        ctrl_c.can_come()
        os.chdir(here)
        os.execvp(command[0], command)
    os.set_blocking(ours, False)
    run = RunDirectory(here / "runs" / "mine")
    deadline = time.monotonic() + 100
    while not any(record["kind"] == "step" for record in run.records()) and time.monotonic() < deadline:
        time.sleep(0.1)
        with suppress(OSError):  # nohup has all streams elsewhere
            os.read(ours, 1 << 16)
    os.close(ours)
    _, status = os.waitpid(process, 0)
    summary = run.read_summary()
    assert summary is not None
    assert (os.waitstatus_to_exitcode(status), summary["status"]) == ((0, "completed") if way else (143, "interrupted"))
    assert list(run.checkpoints.glob("step-*"))


@pytest.mark.slow
def test_under_torchrun_sigterm_is_left_alone(here: Path) -> None:
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-c", STARTING]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize("start", [["-c", "from paceline.cli.entry import main; main()"], ["-m", "paceline.cli.main"]])
def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(start: list[str], here: Path) -> None:
    (here / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    command = [sys.executable, *start, "list", "--format", "json"]
    env = {**os.environ, "PYTHONPATH": str(here)}
    ended = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=110)
    assert (ended.returncode, ended.stderr) == (130, f"{STOPPED_BY_CTRL_C}\n")
    assert json.loads(ended.stdout) == document(130, STOPPED_BY_CTRL_C)


def test_ctrl_c_while_a_dataclass_is_made_ends_with_130(here: Path) -> None:
    (here / "hydra.py").write_text('exec("raise KeyboardInterrupt")\n')
    command = [*PACELINE, "plan"]
    env = {**os.environ, "PYTHONPATH": str(here)}
    ended = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=110)
    assert (ended.returncode, ended.stdout) == (130, "") and ended.stderr.startswith("interrupted; ")


def test_ctrl_c_before_a_command_has_begun_is_an_interruption(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupted)
    monkeypatch.setitem(sys.modules, "paceline.tracking.visible", None)  # its import may have been what was interrupted
    ended = paceline("list")
    assert ended.status == 130 and ended.err.startswith("interrupted; ")


def test_ctrl_c_while_an_error_is_explained_is_an_interruption(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.cli.main._explain", interrupted)
    ended = paceline("train", "no_such_key=1")
    assert ended.status == 130 and ended.err.startswith("interrupted; ")
