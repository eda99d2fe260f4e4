"""A pipeline's schedule in a run directory, schedule.json: one step as modelled, and as measured with `--trace`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from .files import UnusableFileError, read_json
from .strict import StrictRecord

MOST_PASSES = 10_000  # of a step; of one with more the file holds the times alone
MOST_WORKERS = 4_096

Count = Annotated[int, Field(ge=0, le=10**9)]
Seconds = Annotated[float, Field(ge=0, le=1e18)]  # or floating-point operations
Share = Annotated[float, Field(ge=-1, le=1)]


class Made(StrictRecord):
    action: str = Field(pattern=r"^[0-9]{1,9}[FBIWU][0-9]{1,9}$")
    start: Seconds
    end: Seconds


class WorkerRow(StrictRecord):
    bubble: Share
    actions: list[Made] = Field(max_length=MOST_PASSES)


class StoredStage(StrictRecord):
    stage: Count
    worker: Count
    in_flight: Count
    versions: Count


class StoredTimetable(StrictRecord):
    """The stored form of engine's `StoredTimetable.as_dict()`."""

    unit: Literal["seconds", "floating-point operations"]
    time: Annotated[float, Field(gt=1e-18, le=1e24)]
    steps: Annotated[int, Field(ge=1, le=10**9)]
    steady: bool
    bubble: Share
    stages: list[StoredStage] = Field(min_length=1, max_length=MOST_WORKERS)
    workers: list[WorkerRow] = Field(min_length=1, max_length=MOST_WORKERS)


class StoredSchedule(StrictRecord):
    schedule: str = Field(max_length=200)
    clock: Literal["modelled", "measured"]  # of what was measured
    modelled: StoredTimetable
    measured: StoredTimetable | None


def read_schedule(file: Path) -> dict[str, Any]:
    """Raises `OSError`, or `UnusableFileError` where it is not one."""
    try:
        found = StoredSchedule.model_validate(read_json(file))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UnusableFileError(f"is no schedule of a run (see {where or 'its beginning'})") from None
    return found.model_dump()
