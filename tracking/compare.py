"""Runs side by side: one row a run, or a row for runs that differ in their seed alone."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..conf.groups import SHOWN
from . import summaries
from .baseline import ratios, target
from .columns import (
    BY_KEY,
    COLUMNS,
    DEVICE_KINDS,
    MEMORY_KINDS,
    Column,
    human_bytes,
    known,
    nearest,
    no_column,
    unknown,
)
from .derived import DERIVED, derived
from .differing import differing
from .errors import TableError
from .groups import INTERVAL, Entry, grouped, mean, uniform
from .labels import labels
from .rendering import FORMATS, render
from .run_data import RunData
from .run_directory import RunDirectory
from .selection import Condition, Names, directions, mark_front, measured
from .summaries import Row, Summary

__all__ = [
    "COLUMNS",
    "DEVICE_KINDS",
    "FORMATS",
    "MEMORY_KINDS",
    "Column",
    "ComparisonRequest",
    "Row",
    "check",
    "human_bytes",
    "render",
    "rows",
    "sort",
    "table",
]
Run = RunData | RunDirectory | Summary


@dataclass(frozen=True)
class ComparisonRequest:
    """The contents of a comparison. Names are keys or short names of columns, configuration keys, or W&B's own."""

    baseline: RunData | None = None  # one of the runs
    group: bool = True  # repeated seeds as one row
    where: tuple[str, ...] = ()  # conditions that all must hold
    pareto: tuple[str, ...] = ()  # mark who is on the front of these columns
    columns: tuple[str, ...] = ()  # to show, instead of the usual ones
    sort: str | None = None
    reverse: bool = False


def table(runs: Sequence[RunData], request: ComparisonRequest) -> tuple[list[Row], list[RunData]]:
    """The rows that `request` asks for, and the runs that they tell of. Raises TableError.

    A condition on a number is asked of a row (of a group, its mean); any other of each run, before grouping.
    """
    own = _own(runs, request)
    singles = [Entry(each.runs, each.row | values) for each, values in zip(_singles(runs), own, strict=True)]
    there = {key for entry in singles for key in entry.row} | {"n", "runs", "others"}
    there |= set(_RATIOS) if request.baseline else set()
    names = Names.of(runs, frozenset(there & BY_KEY.keys()))
    conditions = [Condition.parse(text, names) for text in request.where]
    of_runs = [condition for condition in conditions if not names.is_measured(condition.key)]
    of_rows = [condition for condition in conditions if names.is_measured(condition.key)]
    front = directions(request.pareto, names)
    sort_key = names.key(request.sort, is_ranked=True) if request.sort is not None else None
    column_keys(request, runs, [dict.fromkeys(there | {"front"} if front else there)])

    def joined(entries: list[Entry]) -> list[Entry]:
        return grouped(entries, names.is_measured) if request.group else entries

    kept = [entry for entry in singles if all(c.holds(_value(entry, c.key, names)) for c in of_runs)]
    entries = joined(kept)
    if request.baseline is not None:
        reference = _holding(joined(singles), request.baseline)
        entries = [Entry(entry.runs, entry.row | ratios(entry, reference)) for entry in entries]
    entries = [entry for entry in entries if all(c.holds(_value(entry, c.key, names)) for c in of_rows)]
    shown = [entry.row for entry in entries]
    if front:
        mark_front(shown, front, [target(entry) for entry in entries])
    shown = uniform(shown)
    if sort_key is not None and shown:
        shown = sort(shown, sort_key, request.reverse, names.larger_first)
    return shown, [run for entry in entries for run in entry.runs]


def column_keys(request: ComparisonRequest, runs: Sequence[RunData], shown: Sequence[Row]) -> list[str]:
    """The keys of the columns that `request` asks for, the run first, then the front; none: the usual ones.

    `shown`: the rows that `table` gave; where no run fulfils the conditions, any column will do. Raises TableError.
    """
    if not request.columns:
        return []
    there = frozenset(key for row in shown for key in row) if shown else frozenset(BY_KEY)
    names = Names.of(runs, there & BY_KEY.keys())
    picked = [names.key(word) for word in request.columns]
    front = ["front"] if request.pareto and "front" not in picked else []
    return list(dict.fromkeys(["run", *front, *picked]))


def rows(runs: Sequence[Run], baseline: str | Run | None = None) -> list[Row]:
    """One row a run, in the order given; keys are COLUMNS' keys, units in their names, None where unknown, and the
    names of metrics of tasks and callbacks.

    A run without a summary, or with a damaged one (status `damaged`), appears with what its metrics tell.
    With a `baseline` (a run, or the name of one of `runs`), six more keys hold ratios: see baseline.ratios.
    Raises TableError when no run has the baseline's name.
    """
    entries = [Entry((run,), _row(run) | measured(run.summary)) for run in map(_data, runs)]
    if baseline is not None:
        if isinstance(baseline, str):
            reference = _named(entries, baseline)
        else:
            data = _data(baseline)
            reference = Entry((data,), _row(data))
        entries = [Entry(entry.runs, entry.row | ratios(entry, reference)) for entry in entries]
    return uniform([entry.row for entry in entries])


def check(run: RunDirectory) -> None:
    """Raises CorruptRunError, naming the file, when the run's summary is damaged."""
    summaries.read(run)


def summary_of(run: RunDirectory | Summary) -> Summary:
    return run if isinstance(run, dict) else summaries.summary_of(run)


def sort(
    table: list[Row], column: str, reverse: bool = False, larger_first: Mapping[str, bool] = MappingProxyType({})
) -> list[Row]:
    """The rows, best first by `column` (a key, or a short name: `throughput`); unknown values come last.

    `larger_first`: of keys that have no column. Any other of these, such as a configuration's, has no better or worse:
    smaller first. Raises TableError, naming the nearest columns, when there is no such column.
    """
    found = known(column)
    key = found.key if found else column
    if table and key not in table[0]:
        raise no_column(column, [key for key in table[0] if not key.endswith(INTERVAL)])
    values = [row for row in table if not unknown(row[key])]
    larger = found.larger_first if found else larger_first.get(key, False)
    ordered = sorted(values, key=lambda row: _order(row[key]), reverse=larger != reverse)
    return ordered + [row for row in table if unknown(row[key])]


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers come before text."""
    if isinstance(value, int | float):
        return False, value
    return True, value if isinstance(value, str) else json.dumps(value, default=str)


_RATIOS = (
    *("speedup_throughput", "speedup_time_to_accuracy", "no_speedup"),
    *("bytes_ratio", "memory_ratio", "dollars_ratio"),
)
# Parameters of a sweep that have a column already: `workers` and `n` are those of the last two.
_SHOWN = {*(group.name for group in SHOWN), "hardware.workers", "seed"}


def _data(run: Run) -> RunData:
    if isinstance(run, RunData):
        return run
    summary = summary_of(run)
    return RunData(str(summary.get("name")), summary, {}, [], run.path if isinstance(run, RunDirectory) else None)


def _row(run: RunData) -> Row:
    row = summaries.row_of(run.summary) | derived(run)
    if run.path is None and isinstance(run.extra.get("run"), str):  # of an exported table
        row |= _exported(run.extra)
    return {key: row[key] for key in [*BY_KEY, *(key for key in row if key not in BY_KEY)] if key in row}


def _exported(extra: Row) -> Row:
    """Returns the values that a row of an exported table has and a summary has not: derived ones, and those of
    a group.
    """
    numbers = {key: value for key, value in extra.items() if isinstance(value, int | float) and value == value}
    told: Row = {key: numbers[key] for key in DERIVED if key in numbers}
    if "n" in numbers:
        told |= {
            "n": numbers["n"],
            **{key: extra[key] for key in ("runs", "others") if isinstance(extra.get(key), list)},
        }
        told |= {key: value for key, value in numbers.items() if key.removesuffix(INTERVAL) in {*BY_KEY} - {key}}
    return told


def _own(runs: Sequence[RunData], request: ComparisonRequest) -> list[Row]:
    """Returns for each run the values without a column: parameters that sweeps varied, choices in which similar runs
    differ, and values that the request names.
    """
    keys = [name for name in (*_varied(runs), *differing(runs)) if name not in _SHOWN]
    keys += [name for run in runs for name in measured(run.summary) if name not in keys]
    if request.columns or request.sort:
        every = Names.of(runs, frozenset(BY_KEY))
        keys += [every.key(word) for word in request.columns]
        keys += [every.key(request.sort, is_ranked=True)] if request.sort else []
    keys = [key for key in dict.fromkeys(keys) if key not in BY_KEY]
    if not keys:
        return [{} for _ in runs]
    names = Names.of(runs, frozenset())
    return [{key: names.value(run, key) for key in keys} for run in runs]


def _varied(runs: Sequence[RunData]) -> list[str]:
    """The parameters that one of the sweeps chose more than one value of."""
    chosen: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        if run.swept is None:
            continue
        for name, value in run.swept.parameters.items():
            chosen.setdefault((run.swept.sweep, name), set()).add(json.dumps(value, default=str, sort_keys=True))
    return list(dict.fromkeys(name for (_, name), values in chosen.items() if len(values) > 1))


def _value(entry: Entry, key: str, names: Names) -> Any:
    if key in entry.row:
        return entry.row[key]
    if key in BY_KEY:  # n, runs, others of a run by itself
        return {"n": 1, "runs": entry.row["run"]}.get(key)
    values = [names.value(run, key) for run in entry.runs]
    return mean(values)[0] if len(values) > 1 and names.is_measured(key) else values[0]


def _holding(entries: list[Entry], run: RunData) -> Entry:
    return next(entry for entry in entries if any(each is run for each in entry.runs))


def find(runs: Sequence[RunData], name: str) -> RunData | None:
    """The run that is called `name`, as the table does or by its own name, or SWEEP/NAME.

    Raises TableError when several are.
    """
    called = labels(runs)
    found = [run for run, label in zip(runs, called, strict=True) if label == name]
    found = found or [run for run in runs if run.name == name and run.swept is None]
    found = found or [run for run in runs if run.swept and name in (run.name, f"{run.swept.sweep}/{run.name}")]
    if len(found) > 1:
        known = [label for run, label in zip(runs, called, strict=True) if any(run is each for each in found)]
        raise TableError(f"--baseline {name}: must be one run, and is {len(found)}: {' or '.join(known)}")
    return found[0] if found else None


def members(runs: Sequence[RunData], name: str) -> tuple[RunData, ...]:
    """The runs of the group that the table calls `name`, or SWEEP/NAME, completed ones first; (): there is none.

    Raises TableError when several groups are called so.
    """
    entries = [entry for entry in grouped(_singles(runs), lambda _: False) if len(entry.runs) > 1]
    found = [entry for entry in entries if entry.row["run"] == name]
    found = found or [entry for entry in entries if name in _with_and_without_sweep(entry)]
    if len(found) > 1:
        known = " or ".join(str(entry.row["run"]) for entry in found)
        raise TableError(f"--baseline {name}: must be one row, and is {len(found)}: {known}")
    return tuple(sorted(found[0].runs, key=lambda run: run.summary.get("status") != "completed")) if found else ()


def _with_and_without_sweep(entry: Entry) -> tuple[str, ...]:
    label = str(entry.row["run"])
    sweeps = {run.swept.sweep if run.swept else None for run in entry.runs}
    sweep = sweeps.pop() if len(sweeps) == 1 else None
    return (f"{sweep}/{label}", label.removeprefix(f"{sweep}/")) if sweep else ()


def _singles(runs: Sequence[RunData]) -> list[Entry]:
    return [Entry((run,), _row(run) | {"run": label}) for run, label in zip(runs, labels(runs), strict=True)]


def _named(entries: list[Entry], name: str) -> Entry:
    for entry in entries:
        if entry.row["run"] == name:
            return entry
    raise TableError(
        f"baseline {name!r} is not among the runs: {nearest(name, [str(entry.row['run']) for entry in entries])}"
    )
