"""torchrun ends with 1 and a traceback of its own, whatever its worker ended with: why compat/torchrun.py is there."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from paceline.compat.torchrun import LAUNCHER, killed_by, main, status
from paceline.wrap import refusals

Ends = Callable[[Mapping[int, ProcessFailure], list[str]], str | int | None]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Returns the exit status of `main` when workers fail; with the word "says" one of them explains itself first."""

    def end(failures: Mapping[int, ProcessFailure], words: list[str]) -> str | int | None:
        def fails(given: list[str]) -> None:
            (folder := Path(given[1]) / "run" / "attempt_0" / "1").mkdir(parents=True)
            monkeypatch.setenv(refusals.FILE, str(folder / "error.json"))
            if "says" in words:
                refusals._say_once("refused")
            raise ChildFailedError("script.py", dict(failures))

        monkeypatch.setattr(run, "main", fails)
        monkeypatch.setattr(sys, "argv", ["torchrun", *words])
        monkeypatch.setattr(logging, "disable", lambda _: None)  # this process goes on
        monkeypatch.setenv(LAUNCHER, "")
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return end


def test_a_worker_that_left_without_a_word_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert status({0: 4, 1: 7}, 1, True) == 7
    assert capsys.readouterr().err.startswith("worker 1 ended with exit status 7. Look at")
    assert status({0: 1, 1: -15}, 1, True) == 1
    assert capsys.readouterr().err.startswith("worker 0 ended with exit status 1. Look at")


@pytest.mark.parametrize("code", [2, 3, 4, 6, 130])
def test_a_status_of_ours_that_no_worker_explained_is_named(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert status({1: code, 0: -15}, 0, False) == code
    assert capsys.readouterr().err.startswith(f"worker 1 ended with exit status {code}. Look at")


@pytest.mark.parametrize(("words", "named"), [("script.py", True), ("script.py says", False), ("--no-python x", False)])
def test_a_status_that_a_script_or_a_job_explained_is_not_named(
    words: str, named: bool, ends: Ends, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends({1: ProcessFailure(1, 1, 3, "<N/A>")}, words.split()) == 3
    said = capsys.readouterr().err
    assert ("worker 1 ended with exit status 3" in said) == named and ("refused" in said) == ("says" in words)


def test_the_status_is_that_of_the_worker_that_failed_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert status({1: 2}, 1, True) == 2
    assert status({0: -15, 1: 6}, 0, True) == 6  # the other one was ended for its sake
    assert status({0: 4, 1: 6}, 1, True) == 6
    assert capsys.readouterr().err == ""
    assert status({0: 143, 1: 3, 2: -15}, 0, True) == 3
    assert status({0: 143, 1: 143}, 0, True) == 143  # all were told to stop
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("codes", [{0: -9, 1: -15, 2: 143}, {2: 143, 0: -9}, {1: 4, 0: -9, 2: 5}])
def test_a_worker_that_was_killed_is_the_cause_whatever_ended_the_others(
    codes: dict[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    for first in codes:
        assert status(codes, first, True) == 4
        assert capsys.readouterr().err == "worker 0 was killed by SIGKILL (out of memory?)\n"


def test_an_end_long_after_the_first_tells_nothing(ends: Ends, capsys: pytest.CaptureFixture[str]) -> None:
    failures = {rank: ProcessFailure(rank, 1, code, "<N/A>") for rank, code in enumerate((3, -9))}
    failures[1].timestamp = failures[0].timestamp - 20  # the agent ended the other one, which took its time
    assert ends(failures, ["script.py"]) == 4
    assert capsys.readouterr().err == "worker 1 was killed by SIGKILL (out of memory?)\n"


@pytest.mark.parametrize(("number", "name"), [(signal.SIGABRT, "SIGABRT"), (signal.SIGRTMIN + 3, "signal 37")])
def test_each_signal_has_a_name(number: int, name: str) -> None:
    assert killed_by(number) == f"was killed by {name}"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_of_workers_that_end_with_a_killed_one_none_is_named(rank: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"os.kill(os.getpid(), 9) if os.environ['RANK'] == '{rank}' else time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "paceline.compat.torchrun", "--standalone", "--local-addr=127.0.0.1"]
    command += ["--nproc-per-node=3", "script.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    last = ended.stderr.splitlines()[-1]
    assert (ended.returncode, last) == (4, f"worker {rank} was killed by SIGKILL (out of memory?)")


@pytest.mark.slow
def test_what_a_worker_says_is_all_that_is_said_and_left(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, sys\nprint('refused', file=sys.stderr)\nsys.exit(2)\n")
    found: list[tuple[int, bool, bool]] = []
    for module in ("torch.distributed.run", "paceline.compat.torchrun"):
        command = [sys.executable, "-m", module, "--standalone", "--local-addr=127.0.0.1", "script.py"]
        (folder := tmp_path / module).mkdir()
        environment = os.environ | {"TMPDIR": str(folder)}
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        left = any(folder.glob("torchelastic_*"))
        found.append((ended.returncode, "Traceback" in ended.stderr, left))
        assert "refused" in ended.stderr
    assert found == [(1, True, True), (2, False, False)]  # else compat/torchrun.py can go


def test_ctrl_c_while_torch_is_imported_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import time\nprint('imports', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "paceline.compat.torchrun", "script.py"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "imports\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == -signal.SIGINT
