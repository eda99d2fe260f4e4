"""Sorts candidates, and finds the Pareto front and the best of each group."""

from collections.abc import Callable, Sequence
from typing import Literal

from .candidate import Predicted
from .commands import unusual

Sort = Literal["time", "dollars", "memory", "bytes"]
SORTS: tuple[Sort, ...] = ("time", "dollars", "memory", "bytes")
KEYS: dict[Sort, Callable[[Predicted], float | None]] = {
    "time": lambda row: row.seconds,
    "dollars": lambda row: row.dollars,
    "memory": lambda row: float(row.device),
    "bytes": lambda row: row.sent,
}
TIE = 0.01  # of a time or a price: no prediction here can tell them apart


def ranked(rows: Sequence[Predicted], sort: Sort) -> list[Predicted]:
    """Best first. What is not known comes last. Times and prices within `TIE` of the best of them are equal. Of equals
    the simplest comes first, which takes the fewest settings.
    """
    ordered = exactly_ranked(rows, sort)
    if sort not in ("time", "dollars"):
        return ordered
    found: list[list[Predicted]] = []
    for row in ordered:
        if not found or _or_last(KEYS[sort](row)) > (1 + TIE) * _or_last(KEYS[sort](found[-1][0])):
            found.append([])
        found[-1].append(row)
    return [row for equal in found for row in sorted(equal, key=_settings)]


def exactly_ranked(rows: Sequence[Predicted], sort: Sort) -> list[Predicted]:
    """Returns the rows in the order of `ranked`, without its `TIE`: times and prices as they are."""
    first, *others = [KEYS[sort], *(KEYS[other] for other in SORTS if other != sort)]

    def place(row: Predicted) -> tuple[float, ...]:
        return (_or_last(first(row)), _settings(row), *(_or_last(key(row)) for key in others))

    return sorted(rows, key=place)


def _settings(row: Predicted) -> int:
    return len(unusual(row.candidate))


def _or_last(value: float | None) -> float:
    return float("inf") if value is None else value


def front(rows: Sequence[Predicted]) -> list[Predicted]:
    """Returns the Pareto front in seconds, dollars and memory, soonest first.

    Of rows with equal values the first is kept. Rows without a time are on no front.
    """
    timed = exactly_ranked([row for row in rows if row.seconds is not None], "time")
    kept: list[tuple[Predicted, tuple[float, ...]]] = []
    for row in timed:
        values = _values(row)
        if not any(all(a <= b for a, b in zip(other, values, strict=True)) for _, other in kept):
            kept.append((row, values))
    return [row for row, _ in kept]


def _values(row: Predicted) -> tuple[float, ...]:
    assert row.seconds is not None
    return (row.seconds, row.dollars or 0.0, float(row.device))


def best_of_groups(rows: Sequence[Predicted], sort: Sort) -> list[Predicted]:
    """Returns the best row of each layout (a family's group, on so many workers) over its micro-batches, recomputation
    and the like.
    """
    found: dict[tuple[str, str, int], Predicted] = {}
    for row in ranked(rows, sort):
        found.setdefault(row.candidate.kind, row)
    return list(found.values())


def roomy_first(rows: Sequence[Predicted], sort: Sort) -> list[Predicted]:
    """Returns the best of each group: with the margin of published runs if one is, and those without it last."""
    found: dict[tuple[str, str, int], Predicted] = {}
    for roomy in (True, False):
        for row in best_of_groups([row for row in rows if row.roomy is roomy], sort):
            found.setdefault(row.candidate.kind, row)
    return list(found.values())


def spread(rows: Sequence[Predicted], most: int) -> list[Predicted]:
    """Returns at most so many rows of a front: the soonest, the cheapest, that of least memory, and others."""
    if len(rows) <= most:
        return list(rows)
    values = [_values(row) for row in rows]
    ends = [min(range(len(rows)), key=lambda i: values[i][of]) for of in range(3)]
    even = [round(i * (len(rows) - 1) / (most - 1)) for i in range(most)]
    return [rows[i] for i in sorted(list(dict.fromkeys([*ends, *even]))[:most])]
