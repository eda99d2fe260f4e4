"""`paceline ...` as a process of its own, with all that it starts, and what must hold however it ends."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from process_table import MARK, marked, workers_of
from short_runs import clean_environment

from paceline.engine.base.checkpoint import read_manifest, steps_of
from paceline.tracking.run_directory import RunDirectory

from .judge import WrongError

HERE = Path(__file__).parent
LONGEST = 120.0  # seconds that a short run may take on a busy machine
GONE = 4.0  # seconds after which nothing of an ended command may be left
NAME = "victim"
SMALL = (
    *("tracking=none", "data.limit=200", "batch_size=16", "epochs=1000", "evaluate.every=1000"),
    *("checkpoint.every=0", "checkpoint.every_steps=5", "hardware.threads=1", "hardware.timeout=20"),
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Launched:
    """One command. `prefix`: what it runs in."""

    def __init__(
        self, place: Path, words: Sequence[str], prefix: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> None:
        self.place, self._mark, self._trains = place, uuid.uuid4().hex, words[0] == "train"
        number = len(list(place.glob("stderr-*")))
        self._stderr, self._stdout = place / f"stderr-{number}", place / f"stdout-{number}"
        with self._stderr.open("wb") as errors, self._stdout.open("wb") as output:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "paceline.cli.main", *words],
                cwd=place,
                env={**environment(place), **(env or {}), MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.place / "runs" / NAME)

    def said(self) -> str:
        return self._stderr.read_text(errors="replace")

    def printed(self) -> str:
        return self._stdout.read_text(errors="replace")

    def last_line(self) -> str:
        return next(reversed(self.said().rstrip().splitlines()), "")

    def alive(self) -> dict[int, str]:
        """What is left of it: itself, fork server, workers, W&B's helper; orphans included."""
        return marked(self._mark)

    def workers(self) -> dict[int, int]:
        return workers_of(self.run.path)

    def steps(self) -> int:
        """Recorded so far."""
        if not self.run.path.exists():
            return 0
        return max((record["step"] for record in self.run.records() if record["kind"] == "step"), default=0)

    def comes(self, moment: "Callable[[Launched], bool]", seconds: float = LONGEST) -> bool:
        """Wait for a moment; False when the command ended before it came."""
        deadline = time.monotonic() + seconds
        while not moment(self):
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                self.kill()
                raise WrongError(f"nothing happened for {seconds:g} s; it said: {self.said()[-2000:]}")
            time.sleep(0.005)
        return True

    def signal(self, number: signal.Signals, group: bool = False) -> None:
        try:
            (os.killpg if group else os.kill)(self.process.pid, number)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(10)

    def ends(self, statuses: Collection[int], seconds: float = LONGEST, traceback: bool = False) -> int:
        """Its exit status, which is one of `statuses`, once it has ended as every command must. Raises `WrongError`.

        Args:
            traceback: A user's own script may print one.
        """
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            said = self.said()[-2000:]
            self.kill()
            raise WrongError(f"still there after {seconds:g} s; it said: {said}") from None
        self._leaves_nothing()
        if status not in statuses:
            raise WrongError(f"exit status {status}, not {sorted(statuses)}; it said: {self.said()[-2000:]}")
        if status > 0 and not traceback:
            self._explains_itself()
        if status == 0 and self._trains and self.run.path.exists():  # not where it was mounted for the command alone
            summary = self.run.read_summary() if self.run.summary.exists() else None
            if summary is None or summary["status"] != "completed":
                raise WrongError(f"exit status 0 of a run that is not complete: {summary}")
        return status

    def _leaves_nothing(self) -> None:
        deadline = time.monotonic() + GONE
        while left := self.alive():
            if time.monotonic() > deadline:
                self.kill()
                raise WrongError(f"left running: {left}")
            time.sleep(0.02)

    def _explains_itself(self) -> None:
        said = self.said()
        if "Traceback" in said:
            raise WrongError(f"a traceback: {said[-2000:]}")
        if not re.search(r"\w{2}", self.last_line()):
            raise WrongError(f"the last line explains nothing: {said[-500:]!r}")
        if found := CONTROL.search(said):
            raise WrongError(f"a control character reaches the terminal: {found[0]!r} in {said[-500:]!r}")

    def keeps_whole_checkpoints(self) -> None:
        """Raises what the reader of checkpoints raises when one is not what its manifest says."""
        for checkpoint in steps_of(self.run.checkpoints):
            read_manifest(checkpoint)


def environment(home: Path) -> dict[str, str]:
    """Ours, without a login or another launcher's ranks; the user's modules of this harness can be imported."""
    own = clean_environment(home)
    path = os.pathsep.join([str(HERE), own["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    return {**own, "PYTHONPATH": path, "MKL_CBWR": "COMPATIBLE", "COLUMNS": "200"}


def train(place: Path, *overrides: str, options: Sequence[str] = (), prefix: Sequence[str] = ()) -> Launched:
    """A small run with the harness's own classes at hand."""
    model = [] if "model=trouble" in overrides else ["model.hidden=[32]"]
    return Launched(place, ["train", *SMALL, *model, *overrides, "--name", NAME, *ours(), *options], prefix)


def resume(place: Path) -> Launched:
    return Launched(place, ["train", "--resume", NAME, "--allow-module", "trouble"])


def ours() -> list[str]:
    return ["--config-dir", str(HERE / "conf"), "--allow-module", "trouble"]


def weights(place: Path, runs: str = "runs") -> bytes:
    return (place / runs / NAME / "model.safetensors").read_bytes()


class Moment:
    """When to strike: a look at a command that is true once the moment has come."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, launched: Launched) -> bool:
        run = launched.run.path
        match self.name:
            case "at once":
                return True
            case "run directory made":
                return run.exists()
            case "first worker's log":
                return any((run / "logs").glob("worker-*.log"))
            case "all workers there":
                return len(launched.workers()) >= 2
            case "first step":
                return launched.steps() >= 1
            case "a checkpoint half written":
                return any((run / "checkpoints").glob("*.tmp"))
            case "a checkpoint whole":
                return bool(steps_of(run / "checkpoints"))
            case "late in training":
                return launched.steps() >= 25
        raise AssertionError(self.name)


MOMENTS = (
    *("at once", "run directory made", "first worker's log", "all workers there", "first step"),
    *("a checkpoint half written", "a checkpoint whole", "late in training"),
)
