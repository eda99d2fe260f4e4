"""The two runs of the lab: processes of their own in a temporary folder, which ends with the server.

The server's own thread starts and ends the processes. The kernel ties a process to the thread that started it, and the
threads of requests end at once.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compat.torchrun import LAUNCHER
from ..tracking.errors import StorageError
from ..tracking.run_directory import writing
from .sides import Accepted

NAMES = ("A", "B")
TRACED = 5000  # steps times workers, of which a trace is kept: some kilobytes each
SECONDS = 120.0  # that the runs may take
UNSEEN = 15.0  # seconds without a page that asks, after which the runs are ended


@dataclass
class LabRun:
    """A run that was started. `why`: the reason of its end, where it did not complete."""

    name: str
    root: Path
    steps: int
    process: "subprocess.Popen[bytes]"
    why: str = ""

    @property
    def path(self) -> Path:
        return self.root / self.name

    @property
    def trace(self) -> Path:
        return self.root / f"{self.name}.trace.json"

    @property
    def status(self) -> str:
        if self.why:
            return "ended"
        code = self.process.poll()
        return "running" if code is None else "completed" if code == 0 else "failed"

    def plain(self) -> dict[str, Any]:
        """Returns the progress of the run, for the page."""
        step, words = _last_step(self.path / "metrics.jsonl"), self.why
        if self.status == "failed":
            last = (self.root / f"{self.name}.log").read_text(errors="replace").strip().splitlines()[-1:]
            words = f"ended with exit status {self.process.returncode}: {''.join(last)}"
        return {"name": self.name, "status": self.status, "step": step, "steps": self.steps, "words": words}

    def end(self, why: str) -> None:
        if self.status == "running":
            self.why = why
            os.killpg(self.process.pid, signal.SIGKILL)  # its fork server, too
            self.process.wait()


class LabRuns:
    """The pair of runs. One pair goes on at a time, and the next one replaces it."""

    def __init__(self) -> None:
        """Raises StorageError."""
        try:
            self._root = Path(tempfile.mkdtemp(prefix="paceline-lab-"))
        except OSError as error:
            raise StorageError(f"the lab's folder cannot be made: {error}. Set TMPDIR to a folder with room") from None
        self._mutex = threading.Lock()
        self._runs: list[LabRun] = []
        self._wanted: list[Accepted] = []
        self._to_end = ""
        self._count = 0
        self._begun = self._seen = time.monotonic()

    @property
    def going_on(self) -> bool:
        return bool(self._wanted) or any(run.status == "running" for run in self._runs)

    def start(self, sides: Sequence[Accepted]) -> bool:
        """Asks for a pair of runs. Returns False where one is going on."""
        with self._mutex:
            self._seen = time.monotonic()
            if self.going_on:
                return False
            self._wanted, self._to_end = list(sides), ""
            return True

    def cancel(self) -> None:
        with self._mutex:
            self._wanted, self._to_end = [], "cancelled"

    def look(self) -> dict[str, Any]:
        """Returns the progress, for a page that asks. `version`: of what there is to be drawn."""
        with self._mutex:
            self._seen = time.monotonic()
            told = [run.plain() for run in self._runs]
            version = f"{self._count} {[(each['status'], each['step']) for each in told]}"
            return {"going_on": self.going_on, "runs": told, "version": version}

    def runs(self) -> list[LabRun]:
        """Returns the runs that there is something to draw of."""
        with self._mutex:
            return [run for run in self._runs if (run.path / "metrics.jsonl").exists()]

    def tend(self) -> None:
        """Starts the runs that are asked for, and ends those that nobody watches or that take too long.

        Raises StorageError, after which the lab ends.
        """
        with self._mutex:
            now = time.monotonic()
            if self._wanted:
                with writing(self._root):
                    self._begin(self._wanted)
                self._wanted, self._begun = [], now
            elif self._to_end:
                self._end(self._to_end)
                self._to_end = ""
            elif now - self._seen > UNSEEN:
                self._end("ended, as no page asked for it")
            elif now - self._begun > SECONDS:
                self._end(f"ended after {SECONDS:.0f} s, which is the lab's limit; the command has none")

    def close(self) -> None:
        """Ends everything and removes the folder."""
        with self._mutex:
            self._end("ended with the lab")
            shutil.rmtree(self._root, ignore_errors=True)

    def _end(self, why: str) -> None:
        for run in self._runs:
            run.end(why)

    def _begin(self, sides: Sequence[Accepted]) -> None:
        if self._runs:
            shutil.rmtree(self._runs[0].root)
        self._count += 1
        root = self._root / str(self._count)
        root.mkdir()
        self._runs = []
        for name, side in zip(NAMES, sides, strict=True):
            self._runs.append(_started(name, root, side))


def _started(name: str, root: Path, side: Accepted) -> LabRun:
    traced = side.workers * side.steps <= TRACED
    asked = {
        "overrides": list(side.overrides),
        "config_dir": None if side.config_dir is None else str(side.config_dir.absolute()),
        "allow_modules": list(side.allowed),
        "name": name,
        "root": str(root),
        "trace": str(root / f"{name}.trace.json") if traced else None,
    }
    with (root / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "paceline.lab.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, LAUNCHER: str(os.getpid())},
            start_new_session=True,  # Ctrl-C is for the server, which ends it
        )
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(json.dumps(asked).encode())
    return LabRun(name, root, side.steps, process)


def _last_step(file: Path) -> int:
    """Returns the number of steps that the file has records of; 0 where there is none yet."""
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:  # its end is being written
            continue
        if isinstance(step := record.get("step"), int):
            return step
    return 0
