"""What the page is told: plain values for JSON, every text as it may be shown."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from .. import compare
from ..columns import BY_KEY, TOO_SHORT, known
from ..groups import Entry, grouped, t975
from ..rendering import for_people, is_too_short
from ..sources import RunData
from .curves import ACCURACY, R2, TEST_LOSS, TRAINING_LOSS, Curve, curves_of, encode, limit_for, number, thin
from .palette import DARK, LIGHT, MEMORY_COLOURS, STEP_COLOURS, look
from .text import VALUE_CHARACTERS, shown
from .verdict import aim, bytes_of_a_step, trained, verdicts

DEVICE_KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")
MEMORY_KINDS = (*DEVICE_KINDS, *(f"host_{kind}" for kind in DEVICE_KINDS), "other")
STEP_PARTS = ("compute", "communication", "waiting")
FIRST_METRICS = (ACCURACY, R2, TRAINING_LOSS, TEST_LOSS)
OTHER_METRICS = 20  # of foreign runs there may be hundreds
# What is compared, before what it is made of; then as in the terminal's table.
# What settings are ranked by, if it is known; the names are for people.
MEASURES = {
    "time_to_accuracy_s": "time to accuracy, s",
    "accuracy": "accuracy",
    "r2": "R^2",
    "loss": "loss",
    "throughput_samples_per_s": "samples/s",
    "bytes_per_step": "bytes a step",
}
FIRST_COLUMNS = ("sync", "strategy", "workers", "accuracy", "r2", "time_to_accuracy_s", "bytes_per_step")
CONFIG_KEYS, CONFIG_DEPTH = 2000, 20
Plain = dict[str, Any]


def document(
    runs: list[RunData], compared: list[Plain] | None = None, picked: Sequence[str] = (), metric: str | None = None
) -> Plain:
    """`metric`: the column, or its short name, that the runs are judged by; None for the time to accuracy, if known."""
    rows = [_row(run) for run in runs]
    judged = _judged(rows, metric)
    measures = list(dict.fromkeys([*MEASURES, judged]))
    contests = _contests(runs, [row.get(judged) is not None for row in rows])
    seeds = seeds_of(runs)
    settings = settings_of([group["runs"] for group in seeds], len(runs))
    curves = [curves_of(run) for run in runs]
    metrics = _metrics(curves)
    drawn = [{name: of_run[name] for name in metrics if name in of_run} for of_run in curves]
    limit = limit_for([len(curve) for of_run in drawn for curve in of_run.values()])
    columns, cells = _table(runs, rows)
    keys, values, configurations = _configurations(runs)
    axes = _swept_keys(runs)
    return {
        "verdicts": verdicts(runs),
        "compared": _compared(compared or [], picked),
        "colours": {"light": LIGHT, "dark": DARK, "step": STEP_COLOURS, "memory": MEMORY_COLOURS},
        "columns": columns,
        "metrics": [shown(name) for name in metrics],
        "measures": [
            {"name": MEASURES.get(key, BY_KEY[key].title), "larger": BY_KEY[key].larger_first} for key in measures
        ],
        "judged": measures.index(judged),
        "sorted": next((i for i, column in enumerate(columns) if column["title"] == BY_KEY[judged].title), None),
        "contests": contests,
        "memoryKinds": MEMORY_KINDS,
        "stepParts": STEP_PARTS,
        "axes": [shown(axis) for axis in axes],
        "seeds": seeds,
        "t975": [t975(n) for n in range(max((len(group["runs"]) for group in seeds), default=0) + 1)],
        "configKeys": keys,
        "configValues": values,
        "runs": [
            {
                **_facts(run, settings[place]),
                "contest": contests.index(_contest(run)),
                "results": [finite(rows[place].get(key)) for key in measures],
                "cells": cells[place],
                "curves": [[metrics.index(name), encode(thin(curve, limit))] for name, curve in drawn[place].items()],
                "swept": _swept(run, axes),
                "config": configurations[place],
            }
            for place, run in enumerate(runs)
        ],
    }


def _judged(rows: list[Plain], metric: str | None) -> str:
    """The key of a column."""
    column = known(metric) if metric else None
    if column is not None and column.is_number:
        return column.key
    return next((key for key in MEASURES if any(row.get(key) is not None for row in rows)), "accuracy")


def _contest(run: RunData) -> str:
    """Runs that may be compared: of one model, data set, task and target."""
    return ", ".join(words for words in (trained(run), aim(run)) if words)


def _contests(runs: list[RunData], judged: list[bool]) -> list[str]:
    """Those with the most that can be ranked first."""
    counts = Counter({_contest(run): 0 for run in runs})
    counts.update(_contest(run) for run, known in zip(runs, judged, strict=True) if known)
    return sorted(counts, key=lambda contest: (-counts[contest], contest))


def settings_of(groups: list[list[int]], count: int) -> list[int]:
    """For each of `count` runs which setting it is of, counted from 0: the seeds of one look alike.

    `groups`: the places of each one's runs, as of `seeds_of`.
    """
    first = {place: group[0] for group in groups for place in group}
    found: dict[int, int] = {}
    return [found.setdefault(first.get(place, place), len(found)) for place in range(count)]


def _facts(run: RunData, setting: int) -> Plain:
    summary, appearance = run.summary, look(setting)
    step, wire, predicted = (section(summary, key) for key in ("step_time", "wire", "predicted"))
    staleness = section(section(summary, "staleness"), "histogram")
    return {
        "name": shown(run.name),
        "status": shown(summary.get("status") or "unknown"),
        "modelled": is_modelled(run),
        "look": [appearance.colour, appearance.dash, appearance.marker],
        "target": finite(summary.get("target_accuracy")),
        "bytesOfStep": finite(bytes_of_a_step(summary)),
        "throughput": finite(summary.get("throughput")),
        "tooShort": bool(summary.get("too_short")),
        "step": [finite(step.get(part)) for part in STEP_PARTS],
        "stepMedian": finite(step.get("median")),
        "memory": by_kind(section(summary, "memory")),
        "serverMemory": by_kind(section(summary, "server_memory")),
        "predictedMemory": by_kind(section(predicted, "memory")),
        "bytes": [finite(wire.get("bytes_per_step")), finite(predicted.get("bytes_per_step"))],
        "staleness": _pairs(staleness),
    }


def is_modelled(run: RunData) -> bool:
    return bool(run.summary.get("modelled"))


def section(summary: Plain, key: str) -> Plain:
    """A part of a summary; of a foreign or damaged one it may be anything."""
    found = summary.get(key)
    return found if isinstance(found, dict) else {}


def finite(value: Any) -> float | None:
    read = number(value)
    return read if read is not None and abs(read) < 1e300 else None  # false for NaN, too


def by_kind(memory: Plain) -> list[float | None] | None:
    """Bytes of each of MEMORY_KINDS; None when nothing is known."""
    kinds = [finite(memory.get(kind)) for kind in MEMORY_KINDS]
    return kinds if any(kind is not None for kind in kinds) else None


def _pairs(histogram: Plain) -> list[list[float]]:
    pairs = [(key, finite(times)) for key, times in histogram.items()]
    return sorted([float(key), times] for key, times in pairs if times is not None and str(key).isdecimal())


def _metrics(curves: list[dict[str, Curve]]) -> list[str]:
    names = dict.fromkeys(name for of_run in curves for name in of_run)
    others = [name for name in names if name not in FIRST_METRICS]
    return [*(name for name in FIRST_METRICS if name in names), *others[:OTHER_METRICS]]


# -- the table


def _table(runs: list[RunData], rows: list[Plain]) -> tuple[list[Plain], list[list[Any]]]:
    """Columns in which anything is known, and each run's cells: [text, value to sort by]."""
    columns = [
        (column.key, column.title, column.text, column.is_number, column.larger_first)
        for column in sorted(compare.COLUMNS, key=lambda column: _rank(column.key))
        if column.key
        not in ("run", "status", "modelled", "too_short", "why", *(f"{kind}_mib" for kind in MEMORY_KINDS))
        and any(row.get(column.key) not in (None, column.usual) or is_too_short(row, column.key) for row in rows)
    ]
    swept = [key for key in _swept_keys(runs) if key not in {column[0] for column in columns}]
    heads: list[Plain] = [
        {"title": "status", "number": False, "down": False},
        *({"title": shown(key), "number": _all_numbers(runs, key), "down": False} for key in swept),
        *({"title": title, "number": is_number, "down": down} for _, title, _, is_number, down in columns),
    ]
    cells = [
        [
            [_status(run), None],
            *(_swept_cell(run, key) for key in swept),
            *(
                [TOO_SHORT, None] if is_too_short(row, key) else _cell(row.get(key), text)
                for key, _, text, _, _ in columns
            ),
        ]
        for run, row in zip(runs, rows, strict=True)
    ]
    reasons = [reason(run) for run in runs]
    if any(reasons):
        heads.append({"title": "reason", "number": False, "down": False})
        for row, why in zip(cells, reasons, strict=True):
            row.append([shown(why, 500) if why else "", None])
    return heads, cells


def _rank(key: str) -> int:
    return FIRST_COLUMNS.index(key) if key in FIRST_COLUMNS else len(FIRST_COLUMNS)


def _compared(table: list[Plain], picked: Sequence[str]) -> Plain | None:
    """The rows of a comparison as the terminal shows them; None where they say no more than the table of runs."""
    says_more = ("n", "front", "speedup_throughput")
    if not table or not (picked or any(row.get(key) is not None for row in table for key in says_more)):
        return None
    titles, numbers, cells = for_people(table, picked)
    return {
        "titles": [shown(title) for title in titles],
        "numbers": numbers,
        "rows": [[shown(text, 500) for text in row] for row in cells],
    }


def seeds_of(runs: list[RunData]) -> list[Plain]:
    """The groups of runs that differ in their seed alone: a label, and their places."""
    places = {id(run): place for place, run in enumerate(runs)}
    groups = grouped([Entry((run,), _row(run)) for run in runs], lambda _: False)
    return [
        {"label": shown(group.row["run"]), "runs": [places[id(run)] for run in group.runs]}
        for group in groups
        if len(group.runs) > 1
    ]


def _row(run: RunData) -> Plain:
    try:
        return compare.rows([run])[0]
    except ValueError as error:  # a foreign summary with a value of another type
        return {"run": run.name, "status": f"damaged: {error}"}


def _status(run: RunData) -> str:
    status = shown(run.summary.get("status") or "unknown")
    return f"{status}, modelled" if is_modelled(run) else status


def reason(run: RunData) -> str | None:
    """Why a run did not complete, as its last record says."""
    for record in reversed(run.records):
        if record.get("kind") == "end":
            why = record.get("reason")
            return None if why is None else str(why)
    why = run.summary.get("reason")  # of a run that W&B recorded
    return None if why is None else str(why)


def _cell(value: Any, text: Callable[[Any], str]) -> list[Any]:
    if value is None:
        return ["-", None]
    if isinstance(value, str):
        return [shown(value), None]
    return [shown(text(value)), finite(value)]


def _all_numbers(runs: list[RunData], key: str) -> bool:
    values = [value for run in runs if (value := _parameters(run).get(key)) is not None]
    return all(finite(value) is not None for value in values)


def _swept_cell(run: RunData, key: str) -> list[Any]:
    value = _parameters(run).get(key)
    if value is None:
        return ["-", None]
    known = finite(value)
    return [shown(plain(value)) if known is None else f"{known:.6g}", known]


# -- sweeps and configurations


def _swept_keys(runs: list[RunData]) -> list[str]:
    return list(dict.fromkeys(str(key) for run in runs for key in _parameters(run)))


def _parameters(run: RunData) -> Plain:
    return {str(key): value for key, value in run.swept.parameters.items()} if run.swept else {}


def _swept(run: RunData, axes: list[str]) -> list[Any] | None:
    """The value on each axis: a number, or a text; None: not swept in this run."""
    if run.swept is None:
        return None
    parameters = _parameters(run)
    found = [parameters.get(axis) for axis in axes]
    return [
        None if value is None else known if (known := finite(value)) is not None else shown(plain(value), 60)
        for value in found
    ]


def _configurations(runs: list[RunData]) -> tuple[list[str], list[str], list[list[int]]]:
    """All keys, all values, and of each run the places of its keys and values in turn: most runs share most."""
    keys: dict[str, int] = {}
    values: dict[str, int] = {}
    configurations = [
        [
            place
            for key, value in flat(run.config)
            for place in (keys.setdefault(key, len(keys)), values.setdefault(value, len(values)))
        ]
        for run in runs
    ]
    return list(keys), list(values), configurations


def flat(config: Any) -> list[tuple[str, str]]:
    """{"optimizer": {"lr": 1}} -> [("optimizer.lr", "1")]; the first CONFIG_KEYS of them."""
    return [(shown(key), shown(plain(value), VALUE_CHARACTERS)) for key, value in islice(_leaves(config), CONFIG_KEYS)]


def _leaves(config: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(config, dict) and config and depth < CONFIG_DEPTH:
        for key, value in config.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    elif prefix:
        yield prefix, config


def plain(value: Any) -> str:
    """A value as a person would write it; of a nested one no more than is shown, however far it goes on."""
    if isinstance(value, str):
        return value
    try:
        parts = json.JSONEncoder(default=str, ensure_ascii=False).iterencode(value)
        return "".join(islice(parts, VALUE_CHARACTERS))
    except (ValueError, TypeError, RecursionError) as error:  # a YAML that contains itself
        return f"({type(error).__name__}: {error})"
