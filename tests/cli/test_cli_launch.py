"""`paceline launch`: torchrun's command line, and what is refused before anything is started."""

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that take the place of this process, which stays."""
    lines: list[list[str]] = []

    def execv(program: str, arguments: list[str]) -> None:
        lines.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return lines


def test_a_script_and_its_own_arguments_are_given_to_torchrun(paceline, here: Path, given) -> None:
    (here / "mine.py").write_text("")
    paceline("launch", "--workers", "3", "mine.py", "--lr", "0.1", "--workers", "7")
    own = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=3"]  # loopback: no other host is met
    torchrun = [sys.executable, "-P", "-m", "paceline.compat.torchrun", *own]
    assert given == [[*torchrun, "mine.py", "--lr", "0.1", "--workers", "7"]]


def test_a_dry_run_needs_no_torchrun_and_a_resumed_script_is_told_so(paceline, here: Path, given) -> None:
    (here / "mine.py").write_text("")
    paceline("launch", "--dry-run", "--workers", "3", "mine.py", "--lr", "0.1")
    assert given == [[sys.executable, "-P", "-m", "paceline.wrap", "mine.py", "--lr", "0.1"]]
    assert os.environ["PACELINE_DRY_RUN"] == "3" and "PACELINE_RESUME" not in os.environ
    paceline("launch", "--resume", "mine.py")
    assert "paceline.compat.torchrun" in given[1] and os.environ["PACELINE_RESUME"] == "1"


def test_a_script_without_wrap_is_noted(paceline, here: Path, given) -> None:
    (here / "mine.py").write_text("import torch\n")
    says = "mine.py: does not name paceline.wrap"
    assert says in paceline("launch", "mine.py").err
    assert says not in paceline("launch", "--dry-run", "mine.py").err + paceline("launch", "-w", "1", "mine.py").err
    (here / "mine.py").write_text("from paceline.wrap import wrap\n")
    assert says not in paceline("launch", "mine.py").err


def test_what_cannot_be_launched_is_refused(paceline, monkeypatch) -> None:
    ended = paceline("launch", "none.py")
    assert (ended.status, ended.last) == (2, "none.py: must be a Python file, and there is none")
    Path("broken.py").symlink_to("/proc/self/mem")  # which opens, and cannot be read
    ended = paceline("launch", "broken.py")
    assert (ended.status, ended.last) == (2, "broken.py: cannot be read (Input/output error)")
    monkeypatch.setattr("paceline.engine.base.started.was_started", lambda: True)
    (Path.cwd() / "mine.py").write_text("")
    ended = paceline("launch", "mine.py")
    assert ended.status == 2 and "one of torchrun's workers already" in ended.last
