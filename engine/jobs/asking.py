"""Asks schedulers about runs that were submitted, from any host that sees the runs' directories."""

import time
from dataclasses import dataclass
from pathlib import Path

from ...conf.errors import ConfigError
from ...tracking.alive import is_held
from ...tracking.errors import CorruptRunError
from ...tracking.job_files import FOLDER, JobEnd, JobNote, open_job
from ...tracking.run_directory import RunDirectory, run_names
from ..base.errors import CorruptCheckpointError, MachineError
from ..config.stored import read_stored
from .making import scheduler_of
from .scheduler import SETTLES, JobState, Scheduler

UNREACHABLE = "the scheduler cannot be reached"


@dataclass(frozen=True)
class RunJob:
    """A run's job. `state`: the scheduler's answer, if `end` is None; None: it cannot be reached. `damage`: the reason
    for which nobody can be asked.
    """

    run: str
    note: JobNote
    end: JobEnd | None = None
    state: JobState | None = None
    damage: str = ""

    @property
    def word(self) -> str:
        if self.damage:
            return self.damage
        if self.end is not None:
            again = f", after {self.end.lost + self.end.failed} ends" if self.end.lost + self.end.failed else ""
            return f"ended with status {self.end.exit_code}{again}"
        return UNREACHABLE if self.state is None else self.state.word


def jobs_under(root: Path, allowed: tuple[str, ...] = ()) -> list[RunJob]:
    """Returns the jobs of the runs under `root`, the last submitted first."""
    asked = [_asked(RunDirectory(root / name), allowed) for name in run_names(root)]
    found = [job for job in asked if job is not None]
    return sorted(found, key=lambda job: job.note.submitted, reverse=True)


def _asked(directory: RunDirectory, allowed: tuple[str, ...]) -> RunJob | None:
    note = JobNote("?", "?", "?", "?")
    try:
        note = JobNote.read(directory.path) or note
        return job_of(directory, allowed)
    except (ConfigError, CorruptRunError, CorruptCheckpointError) as error:
        return RunJob(directory.name, note, damage=str(error))


def job_of(directory: RunDirectory, allowed: tuple[str, ...] = ()) -> RunJob | None:
    """Returns the job of a run; None if it was never submitted. Raises `ConfigError` and `CorruptRunError`."""
    note, end = JobNote.read(directory.path), JobEnd.read(directory.path)
    if note is None:
        return None
    state = None if end is not None else scheduler_for(directory, allowed).look(note.id)
    return RunJob(directory.name, note, end, state)


def scheduler_for(directory: RunDirectory, allowed: tuple[str, ...]) -> Scheduler:
    """Returns the scheduler of a run. Raises `ConfigError` if its stored configuration cannot be read, or names a class
    that is not allowed.
    """
    return scheduler_of(read_stored(directory).experiment, allowed)


class JobWatch:
    """Tells whether a run that a scheduler has goes on: a job that is over says so a while before it counts as dead."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._over_since: float | None = None

    def goes_on(self) -> bool:
        """Asks the scheduler. Raises as `job_of` does."""
        job = job_of(self._directory)
        if job is None or job.end is not None:
            return False
        if job.state is None or job.state.phase != "over":
            self._over_since = None
            return True
        self._over_since = self._over_since or time.monotonic()
        return time.monotonic() < self._over_since + SETTLES


def cancel(directory: RunDirectory, now: bool, allowed: tuple[str, ...] = ()) -> str:
    """Ask the run's workers to save and stop, or end them `now`; returns what was done, in words.

    Raises `ConfigError` for a run that has no job, `MachineError` where the scheduler does not do it.
    """
    note = open_job(directory.path)
    if note is None:
        if (past := JobNote.read(directory.path)) is not None:
            raise ConfigError(f"{directory.name}: its job {past.id} is over. Choose a job that still goes on.")
        raise ConfigError(f"{directory.name}: no scheduler has this run. Choose one that paceline jobs lists.")
    scheduler = scheduler_for(directory, allowed)
    state = scheduler.look(note.id)
    if state is None or state.phase != "over":
        scheduler.cancel(note.id, now)
    if state is None or state.phase == "running":
        return f"job {note.id} {'was ended' if now else 'saves and stops'}"
    if is_held(directory.metrics):  # hosts, and containers of one host, may have one name
        raise MachineError(
            f"{directory.name}: its job {note.id} is over here, and the run goes on. Cancel it on the host, or in the "
            "container, where it was submitted."
        )
    (directory.path / FOLDER).mkdir(exist_ok=True)
    JobEnd(130, f"job {note.id} was cancelled").write(directory.path)  # no supervisor says it
    return f"job {note.id} was {'over' if state.phase == 'over' else 'cancelled before it began'}"
