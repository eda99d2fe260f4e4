"""Derives from a run's records values that its summary lacks."""

from collections.abc import Callable, Sequence
from typing import Any

from .columns import BY_KEY, METRICS
from .run_directory import Record
from .values import number

AXES = ("step", "epoch", "time")  # of a record: when it was measured


def lived(records: Sequence[Record]) -> list[Record]:
    """Returns the records without the steps that a resumed run repeated from an earlier checkpoint."""
    kept: list[Record] = []
    for record in records:
        since = number(record.get("step")) if record.get("kind") == "resume" else None
        if since is not None:
            kept = [old for old in kept if (number(old.get("step")) or 0.0) <= since]
        kept.append(record)
    return kept


def at_target(summary: dict[str, Any], records: Sequence[Record]) -> Record | None:
    """The first evaluation that reached the target."""
    target = number(summary.get("target_accuracy"))
    if target is None:
        return None
    for record in lived([record for record in records if record.get("kind") in ("evaluation", "resume")]):
        scores = [score for metric in METRICS if (score := number(record.get(metric))) is not None]
        if record.get("kind") == "evaluation" and scores and scores[0] >= target:
            return record
    return None


def own_metrics(evaluation: Record) -> dict[str, Any]:
    """Returns the metrics of an evaluation that have no column: the task's, then those of callbacks."""
    left_out = {"kind", *AXES, *BY_KEY}
    return {name: value for name, value in evaluation.items() if name not in left_out and number(value) is not None}


def first_at(metric: str, reaches: Callable[[float], bool], records: Sequence[Record]) -> float | None:
    """Returns the seconds of training at the first evaluation whose metric reached the target."""
    for record in records:
        score = number(record.get(metric)) if record.get("kind") == "evaluation" else None
        if score is not None and reaches(score):
            return number(record.get("time"))
    return None
