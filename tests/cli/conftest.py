"""The command, run in this process."""

import functools
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.err.rstrip().rpartition("\n")[2]


Command = Callable[..., Ended]
made_once = functools.cache(typer.main.get_command)  # from the signatures of all commands, in 30 ms


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that the command is given in."""
    monkeypatch.chdir(tmp_path)
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def paceline(here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """`paceline("train", "sync=asp")`: as a shell would see it, in this process."""
    from paceline.cli.main import main
    from paceline.comm.native_links import native_links

    native_links()  # without a compiler it says so once, and not in the midst of what a test reads
    monkeypatch.setattr(typer.main, "get_command", made_once)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        capfd.readouterr()
        before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
        try:
            with pytest.raises(SystemExit) as end:
                main()
        finally:
            for number, handler in before:
                signal.signal(number, handler)
        out, err = capfd.readouterr()
        assert isinstance(end.value.code, int)
        return Ended(end.value.code, out, err)

    return run
