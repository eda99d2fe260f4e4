"""Reads the predicted time of a step from a run's prediction.json, which is absent if nothing was predicted."""

from typing import Any

from .files import UnusableFileError, read_json
from .run_data import RunData
from .run_directory import RunDirectory
from .values import number

MOST_PARTS = 40


def prediction_of(run: RunData) -> dict[str, Any] | None:
    """{"seconds", "parts", "formulas", "how"}; None where there is none, or it is damaged."""
    if run.path is None:
        return None
    try:
        told = read_json(RunDirectory(run.path).prediction)
    except (OSError, UnusableFileError):
        return None
    return told if isinstance(told, dict) and isinstance(told.get("parts"), dict) else None


def seconds_by_part(run: RunData) -> dict[str, float] | None:
    """Returns the seconds of a step by part. Parts that take no time are left out."""
    told = prediction_of(run)
    if told is None:
        return None
    parts = {str(name)[:40]: number(value) for name, value in list(told["parts"].items())[:MOST_PARTS]}
    found = {name: value for name, value in parts.items() if value is not None and 0 < value < 1e9}
    return found or None
