"""The notes in a run's directory on the scheduler's job that trains it: job.json, and job/end.json once it is over."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .errors import CorruptRunError
from .run_directory import read_object, write_atomically

NOTE = "job.json"
FOLDER = "job"  # rendezvous of the workers, and how they ended
END = "end.json"


@dataclass(frozen=True)
class JobNote:
    """The contents of job.json. `launcher`: the choice's name. `host`, `submitted`: from where it was, and when."""

    launcher: str
    id: str
    host: str
    submitted: str

    def write(self, run: Path) -> None:
        write_atomically(run / NOTE, json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, run: Path) -> "JobNote | None":
        """Returns None for a run that no scheduler has. Raises `CorruptRunError`."""
        found = read_object(run / NOTE)
        if found is None or "id" not in found:  # torchrun's job has a note, too
            return None
        unknown = [key for key in found if key not in {field.name for field in fields(cls)}]
        if unknown:
            raise CorruptRunError(
                f"{run / NOTE} has {', '.join(unknown)}, which this version of paceline does not know: a later one "
                "wrote it. Upgrade paceline."
            )
        try:
            note = cls(**found)
            if not all(isinstance(value, str) for value in found.values()):
                raise TypeError
            return note
        except TypeError:
            raise CorruptRunError(f"{run / NOTE} is not as paceline writes it") from None


@dataclass(frozen=True)
class JobEnd:
    """The end of a job. `lost`, `failed`: how often its workers were started again after such an end; `first`: the
    message of the first of these.
    """

    exit_code: int
    message: str
    lost: int = 0
    failed: int = 0
    first: str = ""

    def write(self, run: Path) -> None:
        write_atomically(run / FOLDER / END, json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, run: Path) -> "JobEnd | None":
        """Returns None where the job has not said how it ended: it goes on, or was killed. What no supervisor wrote
        says nothing.
        """
        try:
            end = cls(**(read_object(run / FOLDER / END) or {}))
        except (CorruptRunError, TypeError):
            return None
        numbers, texts = (end.exit_code, end.lost, end.failed), (end.message, end.first)
        is_whole = all(type(each) is int for each in numbers) and all(isinstance(each, str) for each in texts)
        return end if is_whole else None


def open_job(run: Path) -> JobNote | None:
    """Returns the run's job, unless it has said that it is over. Raises `CorruptRunError`."""
    note = JobNote.read(run)
    return None if note is None or JobEnd.read(run) is not None else note


def forget_job(run: Path) -> None:
    """The run goes on without its job."""
    for file in (run / NOTE, run / FOLDER / END):
        file.unlink(missing_ok=True)
