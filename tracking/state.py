"""Tells the state of a run from its directory alone: it goes on, it ended (and how), or it died."""

from typing import Any

from . import summaries
from .alive import is_held
from .errors import CorruptRunError
from .job_files import open_job
from .run_directory import Record, RunDirectory

DIED = "its launcher has gone without a word: it was killed, or its host went down"


def state_of(directory: RunDirectory) -> tuple[str, str]:
    """`running`, `submitted` (a scheduler has it), `died`, or the status that it ended with, and why."""
    if (job := open_job(directory.path)) is not None:
        return ("running", "") if is_held(directory.metrics) else ("submitted", f"job {job.id} of {job.launcher}")
    if (ended := _ended(directory)) is not None:
        return ended
    if is_held(directory.metrics):
        return "running", ""
    return _ended(directory) or _by_records(directory.records()) or ("died", DIED)  # it may have ended meanwhile


def _ended(directory: RunDirectory) -> tuple[str, str] | None:
    try:
        summary = summaries.read(directory, [])
    except CorruptRunError as error:
        return "damaged", str(error)
    return None if summary.get("status") == "unfinished" else _told(summary)


def _by_records(records: list[Record]) -> tuple[str, str] | None:
    """Returns the end that the records of a run without a summary tell, unless the run went on after it."""
    last: Record = next(
        (record for record in reversed(records) if record.get("kind") in ("end", "resume", "start")), {}
    )
    return _told(last) if last.get("kind") == "end" else None


def _told(record: dict[str, Any]) -> tuple[str, str]:
    status, why = record.get("status"), record.get("reason")
    return (status if isinstance(status, str) else "damaged"), why if isinstance(why, str) else ""
