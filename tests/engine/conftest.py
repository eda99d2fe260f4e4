"""Fixtures: short runs in this process, and in launchers of their own."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from process_table import MARK
from short_runs import HERE, QUICK, Launcher, Start, Train, clean_environment
from submitted_runs import SubmittedProcess

from paceline import engine
from paceline.engine import Result
from paceline.tracking.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    """Runs that a test submitted outlive it, if it fails before their end."""
    yield
    while SubmittedProcess.made:
        SubmittedProcess.made.pop().close()


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


@pytest.fixture
def start(tmp_path: Path, root: Path) -> Iterator[Start]:
    """Start `paceline train` with these overrides; whatever is left of it is killed after the test.

    `prefix`: a command to run it in.
    """
    started: list[Launcher] = []

    def start(
        *overrides: str,
        name: str = "victim",
        prefix: Sequence[str] = (),
        env: dict[str, str] | None = None,
        quick: Sequence[str] = QUICK,
    ) -> Launcher:
        mark, stderr = uuid.uuid4().hex, tmp_path / f"{name}.stderr"
        options = ["--name", name, "--config-dir", str(HERE / "conf"), "--allow-module", "saboteur"]
        command = [sys.executable, "-m", "paceline.cli.main", "train", *quick, *overrides, *options]
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
