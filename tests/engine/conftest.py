"""Short runs, in this process and in launchers of their own."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from process_table import MARK, marked, until

from paceline import engine
from paceline.engine import Result
from paceline.tracking.run_directory import RunDirectory

HERE = Path(__file__).parent
QUICK = (
    "tracking=none",
    "data.limit=200",
    "batch_size=16",
    "model.hidden=[32]",
    "steps=6",
    "epochs=1000",
    "evaluate.every=1000",
    "checkpoint.every=0",
)
START = 60.0  # seconds for a launcher to get its workers going on a busy machine


class Train(Protocol):
    def __call__(self, *overrides: str, name: str | None = None, resume: str | None = None) -> Result: ...


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where run directories are made, by `train` and by launchers."""
    return tmp_path / "runs"


@pytest.fixture
def train(root: Path, fork_server: None, monkeypatch: pytest.MonkeyPatch) -> Train:
    """A short run, in this process."""
    monkeypatch.setattr(sys, "path", sys.path.copy())

    def train(*overrides: str, name: str | None = None, resume: str | None = None) -> Result:
        result = engine.run(
            overrides if resume else [*QUICK, *overrides],
            config_dir=None if resume else HERE / "conf",
            allow_modules=["saboteur"],
            name=name,
            resume=resume,
            root=root,
            quiet=True,
        )
        assert result is not None
        return result

    return train


@dataclass
class Launcher:
    """`paceline train` as a process, the leader of a session (a terminal's foreground group)."""

    process: "subprocess.Popen[bytes]"
    mark: str
    stderr: Path
    run: RunDirectory

    def alive(self) -> dict[int, str]:
        """All that is left of it: itself, fork server, workers, W&B helper, orphans included."""
        return marked(self.mark)

    def said(self) -> str:
        return self.stderr.read_text()

    def last_line(self) -> str:
        return self.said().rstrip().splitlines()[-1]

    def steps(self) -> int:
        """Steps recorded so far."""
        return max((r["step"] for r in self.run.records() if r["kind"] == "step"), default=0)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait while the launcher lives. Raises AssertionError when it ends first, or too much time passes."""
        until(lambda: condition() or self.process.poll() is not None, START, what)
        assert condition(), f"ended with {self.process.returncode} before {what}: {self.said()}"

    def wait(self, seconds: float = START) -> int:
        return self.process.wait(seconds)


class Start(Protocol):
    def __call__(
        self, *overrides: str, name: str = "victim", prefix: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> Launcher: ...


@pytest.fixture
def start(tmp_path: Path, root: Path) -> Iterator[Start]:
    """Start `paceline train` with these overrides; whatever is left of it is killed after the test.

    `prefix`: a command to run it in.
    """
    started: list[Launcher] = []

    def start(
        *overrides: str, name: str = "victim", prefix: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> Launcher:
        mark, stderr = uuid.uuid4().hex, tmp_path / f"{name}.stderr"
        options = ["--name", name, "--config-dir", str(HERE / "conf"), "--allow-module", "saboteur"]
        command = [sys.executable, "-m", "paceline.cli.main", "train", *QUICK, *overrides, *options]
        with stderr.open("wb") as file:
            process = subprocess.Popen(
                [*prefix, *command],
                cwd=tmp_path,
                env={**clean_environment(tmp_path), **(env or {}), MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )
        launcher = Launcher(process, mark, stderr, RunDirectory(root / name))
        started.append(launcher)
        return launcher

    yield start
    for launcher in started:
        for pid in launcher.alive():
            os.kill(pid, signal.SIGKILL)
        launcher.process.wait(10)


def clean_environment(home: Path) -> dict[str, str]:
    """This process's environment without a W&B login or another launcher's ranks; our modules can be imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "TORCHELASTIC_"))}
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(key, None)
    return {**kept, "HOME": str(home), "PYTHONPATH": str(HERE)}
