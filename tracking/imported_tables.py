"""Runs of a CSV file: a line each, as `paceline compare --no-group --format csv` prints them."""

import csv
import io
from pathlib import Path
from typing import Any

from . import summaries
from .columns import known
from .errors import CorruptRunError
from .files import UnusableFileError, read_text
from .imported_runs import MOST_BYTES
from .run_data import RunData, read_value

SEED = "seed"  # what stands left of it was chosen, what stands right of it was measured


def from_csv(file: Path) -> list[RunData]:
    """Raises CorruptRunError when it holds no runs. A line's name is its `run`, or the file's name and its number."""
    try:
        lines = list(csv.reader(io.StringIO(read_text(file, MOST_BYTES)), strict=True))
    except OSError as error:
        raise CorruptRunError(f"{file}: cannot be read ({error.strerror})") from None
    except (UnusableFileError, csv.Error) as error:
        raise CorruptRunError(f"{file}: {error}") from None
    if len(lines) < 2 or not all(lines[0]):
        raise CorruptRunError(f"{file}: holds no runs; its first line must name the columns, each other line is a run")
    if len(set(lines[0])) < len(lines[0]):
        raise CorruptRunError(f"{file}: two of its columns have one name")
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(lines[0]):
            raise CorruptRunError(f"{file}: line {number} has {len(line)} values for {len(lines[0])} columns")
    return [_run(f"{file.stem}-{number:03d}", lines[0], line) for number, line in enumerate(lines[1:], 1)]


def _run(usual_name: str, columns: list[str], line: list[str]) -> RunData:
    values = {column: read_value(text) if text else None for column, text in zip(columns, line, strict=True)}
    name = str(values.pop("run", None) or usual_name)[: summaries.LONGEST]
    chosen = columns[: columns.index(SEED) + 1] if SEED in columns else []
    config = {key: value for key, value in values.items() if key in chosen and value is not None}
    row: dict[str, Any] = {column.key: value for key, value in values.items() if (column := known(key)) is not None}
    try:
        summary = {"status": "completed"} | summaries.summary_from(row | {"run": name})
        summaries.row_of(summary)
    except (ValueError, TypeError, OverflowError) as error:
        return RunData(name, {"name": name, "status": "damaged", "reason": str(error)}, {}, [], None)
    extra = {key: value for key, value in values.items() if value is not None}
    return RunData(name, summary, config, [], None, None, {"run": name, **extra})
