"""Reads facts of a run for figures and the report. A foreign or damaged run may hold anything."""

from dataclasses import replace
from typing import Any

from ...conf.groups import BY_NAME
from .. import compare
from ..columns import MEMORY_KINDS, Column
from ..groups import Entry, grouped
from ..judged import own_directions
from ..rendering import column_of
from ..run_data import RunData
from ..selection import measured
from ..text import shown
from ..values import number

Plain = dict[str, Any]
BROKEN = ("failed", "diverged", "damaged")
STEP_PARTS = ("compute", "communication", "waiting")


def is_modelled(run: RunData) -> bool:
    return bool(run.summary.get("modelled"))


def section(summary: Plain, key: str) -> Plain:
    """A part of a summary."""
    found = summary.get(key)
    return found if isinstance(found, dict) else {}


def labels_of(summary: Plain) -> list[list[int]]:
    """Returns the number of samples of each label that each replica trains on; nothing if it is unknown."""
    told = summary.get("labels")
    if not isinstance(told, list) or not all(isinstance(row, list) and row for row in told):
        return []
    whole = all(type(count) is int and 0 <= count < 10**12 for row in told for count in row)
    return told if whole and len({len(row) for row in told}) == 1 else []


def finite(value: Any) -> float | None:
    read = number(value)
    return read if read is not None and abs(read) < 1e300 else None  # false for NaN, too


def by_kind(memory: Plain) -> list[float | None] | None:
    """Bytes of each of MEMORY_KINDS; None when nothing is known."""
    kinds = [finite(memory.get(kind)) for kind in MEMORY_KINDS]
    return kinds if any(kind is not None for kind in kinds) else None


def bytes_of_a_step(summary: Plain) -> float | None:
    """Returns the bytes of a step, of all workers together."""
    sent = number(section(summary, "wire").get("bytes_per_step"))
    workers = number(summary.get("workers"))
    return None if sent is None or workers is None else sent * workers


def label_of(run: RunData) -> str:
    """Returns the run's name, with what must be known of it."""
    status = run.summary.get("status")
    notes = ["modelled"] if is_modelled(run) else []
    notes += [] if status == "completed" else [shown(status or "unknown")]
    return f"{shown(run.name)} ({', '.join(notes)})" if notes else shown(run.name)


def row_of(run: RunData) -> Plain:
    """Returns the run's row of a comparison."""
    try:
        return compare.rows([run])[0]
    except ValueError as error:  # a foreign summary with a value of another type
        return {"run": run.name, "status": f"damaged: {error}"}


def own_columns(runs: list[RunData], rows: list[Plain]) -> dict[str, Column]:
    """Returns the columns of the metrics of tasks and callbacks, as a comparison has them. `rows`: of `row_of`."""
    larger = own_directions(runs)
    names = dict.fromkeys(name for run in runs for name in measured(run.summary))
    return {name: replace(column_of(name, rows), larger_first=larger.get(name, False)) for name in names}


def trained(run: RunData) -> str:
    """Returns the run's model and data set, and a task other than the default: runs that differ in it are not
    compared.
    """
    task = run.summary.get("task")
    learns = "" if task in (None, BY_NAME["task"].usual) else f", task={shown(task)}"
    return f"{name_of(run, 'model')} on {name_of(run, 'data')}{learns}"


def aim(run: RunData) -> str:
    """The target in words, "" for none; of a run whose metric is no accuracy, in that."""
    target = number(run.summary.get("target_accuracy"))
    if target is None:
        return ""
    is_r2 = "r2" in run.summary and run.summary.get("accuracy") is None
    return f"target R^2 {target:g}" if is_r2 else f"target {target:.2%}"


def name_of(run: RunData, key: str) -> str:
    return shown(run.summary.get(key) or "?")


def swept_keys(runs: list[RunData]) -> list[str]:
    return list(dict.fromkeys(str(key) for run in runs for key in parameters(run)))


def parameters(run: RunData) -> Plain:
    return {str(key): value for key, value in run.swept.parameters.items()} if run.swept else {}


# -- runs that differ in their seed alone


def seeds_of(runs: list[RunData]) -> list[tuple[str, list[int]]]:
    """A label and the places of the runs of each group of several."""
    places = {id(run): place for place, run in enumerate(runs)}
    groups = grouped([Entry((run,), row_of(run)) for run in runs], lambda _: False)
    return [
        (shown(group.row["run"]), [places[id(run)] for run in group.runs]) for group in groups if len(group.runs) > 1
    ]


def settings_of(groups: list[list[int]], count: int) -> list[int]:
    """Returns the number of its setting for each of `count` runs, counted from 0: the seeds of a setting look alike.

    `groups`: the indices of each setting's runs, as `seeds_of` gives them.
    """
    first = {place: group[0] for group in groups for place in group}
    found: dict[int, int] = {}
    return [found.setdefault(first.get(place, place), len(found)) for place in range(count)]
