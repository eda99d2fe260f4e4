"""Runs that a scheduler has, submitted by `paceline train` as a process that follows its job."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from process_table import MARK, marked, until
from short_runs import HERE, QUICK, Train, clean_environment, weights

from paceline.tracking.job_files import JobEnd, JobNote
from paceline.tracking.run_directory import RunDirectory

WAIT = 240.0  # seconds for a job on a busy machine
SLOW = ("hardware.threads=1", "strategy=sabotage", "strategy.pause=0.02", "steps=300")
LONG = (*SLOW, "checkpoint.every_steps=20")
BROKEN = ("strategy=sabotage", "strategy.act=raise", "strategy.at=3")
OWN = ("--config-dir", str(HERE / "conf"), "--allow-module", "saboteur")


class SubmittedProcess:
    """`paceline train`, which follows the job of the run `mine`. `environment`: by which the scheduler is found."""

    made: ClassVar[list["SubmittedProcess"]] = []

    def __init__(self, root: Path, environment: dict[str, str], *overrides: str, options: Sequence[str] = ()) -> None:
        self.run, self._root, self._environment = RunDirectory(root / "runs" / "mine"), root, environment
        self._mark = uuid.uuid4().hex
        (root / "said").touch()
        self.made.append(self)
        self.process = self.start("train", *QUICK, *overrides, "--name=mine", *OWN, *options)

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        with (self._root / "said").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "paceline.cli.main", *words],
                cwd=self._root,
                env=clean_environment(self._root) | self._environment | {MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def close(self) -> None:
        """Kill what a test that failed has left."""
        for pid in marked(self._mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def job(self) -> str:
        note = JobNote.read(self.run.path)
        assert note is not None
        return note.id

    def said(self) -> str:
        return (self._root / "said").read_text()

    def steps(self) -> int:
        return max((record["step"] for record in self.run.records() if record["kind"] == "step"), default=0)

    def until_it_trains(self, step: int = 40) -> dict[int, int]:
        """Returns the pids of its workers, by rank, once it has made `step` steps."""
        until(lambda: self.steps() >= step or self.process.poll() is not None, WAIT, f"no step {step}: {self.said()}")
        found = workers_of(self.run.path)
        assert len(found) == 2, self.said()
        return found

    def end(self) -> int:
        return self.process.wait(WAIT)

    def ended(self) -> JobEnd:
        """Returns how its job says that it ended."""
        end = JobEnd.read(self.run.path)
        assert end is not None, self.said()
        return end


def workers_of(run: Path) -> dict[int, int]:
    """rank -> pid of the processes that train a submitted run."""
    found: dict[int, int] = {}
    for pid in pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:7] == [b"-P", b"-m", b"paceline.cli.main", b"train", b"--submitted", str(run).encode()]:
            ranks = [int(each.partition(b"=")[2]) for each in variables if each.startswith(b"RANK=")]
            found |= dict.fromkeys(ranks, pid)
    return found


def pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def undisturbed(train: Train, *overrides: str) -> bytes:
    return weights(train(*overrides, "hardware.workers=2", name="undisturbed").path)
