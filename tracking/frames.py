"""Returns runs' records as pandas' DataFrames. Only this file imports pandas, which is optional."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .errors import MissingPackageError
from .evaluations import lived
from .labels import labels
from .run_data import RunData
from .run_directory import Record
from .summaries import Row
from .values import number

if TYPE_CHECKING:
    from pandas import DataFrame

# A record's key -> its column, with the unit; a key that is not here is a column of the same name.
_OF_STEPS = {"samples_per_second": "samples_per_s", "step_time": "step_time_s", "time": "time_s"}
_OF_EVALUATIONS = {"loss": "test_loss", "time": "time_s"}
_FIRST = ("epoch", "time_s", "loss", "samples_per_s", "step_time_s")


def curves(run: RunData) -> "DataFrame":
    """One row a step at which anything was recorded, in order; the index is the number of steps made (`step`).

    epoch, time_s (of training), loss (of replica 0's batch), samples_per_s, step_time_s; of evaluations test_loss and
    accuracy or r2; own metrics by their names. NaN where nothing was recorded at that step. Of steps that a resumed run
    made again, the later ones. Raises MissingPackageError.
    """
    pandas = _pandas()
    rows: dict[int, dict[str, float]] = {}
    for record in lived(run.records):
        step = number(record.get("step"))
        if record.get("kind") in ("step", "evaluation") and step is not None and math.isfinite(step):
            row, told = rows.setdefault(int(step), {}), _columns(record)
            # an evaluation's date may be a moment after its step's
            rows[int(step)] = {**told, **row} if record["kind"] == "evaluation" else {**row, **told}
    found = dict.fromkeys(column for row in rows.values() for column in row)
    names = [*(name for name in _FIRST if name in found or not rows), *(name for name in found if name not in _FIRST)]
    index = pandas.Index(sorted(rows), name="step", dtype="int64")
    table = {name: [rows[step].get(name, math.nan) for step in index] for name in names}
    return pandas.DataFrame(table, index=index, columns=names, dtype="float64")


def _columns(record: Record) -> dict[str, float]:
    names = _OF_STEPS if record["kind"] == "step" else _OF_EVALUATIONS
    values = {names.get(key, key): number(value) for key, value in record.items() if key not in ("kind", "step")}
    return {name: value for name, value in values.items() if value is not None}


def curves_of_all(runs: Sequence[RunData]) -> "DataFrame":
    """The curves of each run, indexed by its name (`run`) and the step. Raises MissingPackageError."""
    pandas = _pandas()
    frames = {label: curves(run) for run, label in zip(runs, labels(runs), strict=True)}
    return pandas.concat(frames, names=["run"]) if frames else pandas.DataFrame()


def workers(run: RunData) -> "DataFrame":
    """One row a worker, by rank: the median step in seconds and how it divides. Raises MissingPackageError."""
    told = [each for each in run.summary.get("per_worker") or [] if isinstance(each, dict)]
    parts = ("median", "compute", "communication", "waiting")
    rows = [{f"{part}_s": _known(number(each.get(part))) for part in parts} for each in told]
    index = _pandas().Index([int(each.get("rank", i)) for i, each in enumerate(told)], name="rank", dtype="int64")
    return _pandas().DataFrame(rows, index=index, columns=[f"{part}_s" for part in parts], dtype="float64")


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def table(rows: Sequence[Row]) -> "DataFrame":
    """A comparison's rows, by run: raw values, with units in the names. Raises MissingPackageError."""
    pandas = _pandas()
    frame = pandas.DataFrame([{key: _cell(value) for key, value in row.items()} for row in rows])
    return frame.set_index("run") if "run" in frame else frame


def plain_table(rows: Sequence[Row]) -> "DataFrame":
    """Rows of one kind, as they are. Raises MissingPackageError."""
    return _pandas().DataFrame(list(rows))


def _cell(value: Any) -> Any:
    """A number as one, also where JSON has a text for it; [] is missing, as None is."""
    if isinstance(value, str):
        return value if (known := number(value)) is None else known
    return None if value == [] else value


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingPackageError(
            "pandas is not installed, which curves and tables are given in; pip install 'paceline[pandas]'"
        ) from None
    return pandas
