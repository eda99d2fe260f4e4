"""Submits a run to its scheduler, and follows it to its end from where the user is.

Nothing is decided by a question that was not answered: a scheduler that cannot be reached is waited for.
"""

import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ...comm.rendezvous import make_token
from ...conf.errors import ConfigError
from ...tracking.alive import lock
from ...tracking.errors import StorageError
from ...tracking.files import open_to_write
from ...tracking.job_files import FOLDER, JobEnd, JobNote, forget_job
from ...tracking.mirror import Sink
from ...tracking.run_directory import RunDirectory, follow, writing
from ..base.errors import InterruptedRunError, MachineError, WorkerFailedError
from ..base.signals import STOP_SIGNALS
from ..config.experiment import Experiment
from ..config.resumed import hidden_keys
from .scheduler import SETTLES, TOKEN, JobLauncher, JobState, Scheduler, SubmittedRun

LOOK = 1.0  # seconds between two questions to the scheduler


def check(experiment: Experiment, scheduler: JobLauncher) -> None:
    """Checks what can be checked before anything is made. Raises `ConfigError` or `MachineError`."""
    for key in hidden_keys(experiment.model_dump()):
        raise ConfigError(
            f"{key}: looks like a secret. None is written down, so that no job can have it. Choose launcher=auto."
        )
    scheduler.check()


def submit(directory: RunDirectory, experiment: Experiment, scheduler: Scheduler, allowed: tuple[str, ...]) -> JobNote:
    """Submit the run whose directory this is. Raises `ConfigError`, `MachineError` or `StorageError`."""
    job, folder = SubmittedRun(directory.path, allowed), directory.path / FOLDER
    with writing(folder):
        folder.mkdir(exist_ok=True)
        forget_job(directory.path)
        (folder / TOKEN).unlink(missing_ok=True)  # others may have been able to read an earlier one
        make_token(folder / TOKEN)
        launcher = experiment.choice("launcher").name
        note = JobNote(launcher, scheduler.submit(job), socket.gethostname(), time.strftime("%Y-%m-%dT%H:%M:%S"))
    try:
        note.write(directory.path)
    except StorageError:
        scheduler.cancel(note.id, now=True)  # nobody would find it
        raise
    return note


@contextmanager
def alone(directory: RunDirectory) -> Iterator[None]:
    """Keeps other commands from submitting the run in the context. Raises `ConfigError` or `StorageError`."""
    folder = directory.path / FOLDER
    with writing(folder):
        folder.mkdir(exist_ok=True)
        descriptor = open_to_write(folder / "lock")
    try:
        if not lock(descriptor, fcntl.LOCK_EX):
            raise ConfigError(
                f"--resume {directory.name}: another command submits this run now. Choose paceline watch "
                f"{directory.name}."
            )
        yield
    finally:
        os.close(descriptor)


class Followed:
    """A job, and the signals for which it is to stop."""

    def __init__(self, scheduler: Scheduler, id: str, run: Path, say: Callable[[str], object]) -> None:
        """`run`: the directory of its run. `say`: tells the user what the scheduler says."""
        self._scheduler, self._id, self._run, self._say = scheduler, id, run, say
        self.stop_signal, self._presses = 0, 0
        self.over = threading.Event()
        self.last: JobState | None = None

    def ask_to_stop(self, number: int = signal.SIGTERM, _: FrameType | None = None) -> None:
        """Handles a signal: the first asks the workers to save and stop, the second ends them."""
        self.stop_signal = number
        self._presses += 1

    def look(self) -> None:
        """Ask the scheduler until the job is over, and pass on what the user asks for."""
        shown, passed_on, seen_over = "", 0, None
        while not self.over.is_set():
            if passed_on < (passed_on := min(self._presses, 2)):
                self._say("asking the job to save and stop" if passed_on == 1 else "ending the job")
                with suppress(MachineError):  # the user may press again
                    self._scheduler.cancel(self._id, now=passed_on == 2)
            state = self._scheduler.look(self._id)
            word = "the scheduler cannot be reached; waiting for it" if state is None else state.word
            if word != shown:
                self._say(f"job {self._id}: {word}")
                shown = word
            if state is None or state.phase != "over":
                seen_over = None
            elif JobEnd.read(self._run) is not None or (
                seen_over is not None and time.monotonic() > seen_over + SETTLES
            ):
                self.last = state
                self.over.set()
            else:
                seen_over = seen_over or time.monotonic()
            time.sleep(LOOK)


def follow_to_the_end(
    directory: RunDirectory,
    scheduler: Scheduler,
    note: JobNote,
    sinks: Sequence[Sink],
    say: Callable[[str], object],
    started: Callable[[Followed], object] = lambda _: None,
) -> None:
    """Hand the run's records to `sinks` until its job is over. `started` is given the job, to stop it from elsewhere.

    Raises the error with which the job ended.
    """
    followed = Followed(scheduler, note.id, directory.path, say)
    started(followed)
    watcher = threading.Thread(target=followed.look, name="paceline-job", daemon=True)
    with _heard(followed):
        watcher.start()
        for record in follow(directory.metrics, followed.over):
            for sink in sinks:
                sink.record(record)
    for sink in sinks:
        sink.close(None)
    _check_end(directory, followed, note)


def _check_end(directory: RunDirectory, followed: Followed, note: JobNote) -> None:
    end = JobEnd.read(directory.path)
    if end is not None and end.exit_code == 0:
        return
    if end is None:  # it was killed, or cancelled before it began
        word = "" if followed.last is None else f" ({followed.last.word})"
        end = JobEnd(4, f"job {note.id} ended and did not say how{word}")
        if followed.stop_signal:
            end = JobEnd(128 + followed.stop_signal, f"job {note.id} was cancelled")
        end.write(directory.path)
    if end.exit_code > 128:
        raise InterruptedRunError(end.message, end.exit_code)
    times = ", ".join(f"{number} {kind}" for kind, number in (("lost", end.lost), ("failed", end.failed)) if number)
    details = [f"the first of its ends was: {end.first}; its workers were started again ({times})"] if times else []
    raise WorkerFailedError(end.message, end.exit_code, [*details, f"logs: {directory.path / 'logs'}"])


@contextmanager
def _heard(followed: Followed) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, followed.ask_to_stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
