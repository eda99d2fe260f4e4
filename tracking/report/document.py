"""The values that the page gets: plain ones for JSON, with every text safe to show."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

from ...conf.groups import SHOWN
from .. import compare
from ..columns import BY_KEY, MEMORY_KINDS, TOO_SHORT, Column
from ..figures.built import judged_by, sheet_of
from ..figures.curves import Curve, encode, limit_for, thin
from ..figures.facts import finite, is_modelled, own_columns, parameters, row_of, swept_keys
from ..figures.palette import DARK, LIGHT, CurveStyle
from ..figures.request import FigureRequest
from ..figures.spec import Lines, Sheet
from ..groups import t975
from ..rendering import for_people, is_too_short
from ..run_data import RunData
from ..text import VALUE_CHARACTERS, plain, shown
from .pictures import sections
from .schedules import schedules
from .verdict import verdicts

# What is compared, before the choices in which runs differ; then as in the terminal's table.
FIRST_COLUMNS = (
    *("sync", "strategy", "workers", "accuracy", "robust_accuracy", "backdoor_success", "epsilon", "epsilon_as_dealt"),
    *("r2", "time_to_accuracy_s", "bytes_per_step"),
)
CONFIG_KEYS, CONFIG_DEPTH = 2000, 20
Plain = dict[str, Any]


def document(
    runs: list[RunData],
    compared: list[Plain] | None = None,
    picked: Sequence[str] = (),
    metric: str | None = None,
    requests: Sequence[FigureRequest] = (),
) -> Plain:
    """`metric`: the column, or its short name, that the runs are judged by; None for the time to accuracy, if known."""
    rows = [row_of(run) for run in runs]
    own = own_columns(runs, rows)
    judged = BY_KEY.get(key := judged_by(rows, metric, own)) or own[key]
    sheet = sheet_of(runs, metric, requests)
    columns, cells = _table(runs, rows, own)
    keys, values, configurations = _configurations(runs)
    title = shown(judged.title)
    return {
        "verdicts": verdicts(runs),
        "compared": _compared(compared or [], picked),
        "colours": {"light": LIGHT, "dark": DARK},
        "columns": columns,
        "sorted": next((i for i, column in enumerate(columns) if column["title"] == title), None),
        "larger": judged.larger_first,
        "sections": sections_of(sheet),
        "schedules": schedules(runs),
        "pictures": sections(runs),
        "settings": _plain(sheet.settings, 0),
        "t975": [t975(n) for n in range(max((len(setting.runs) for setting in sheet.settings), default=0) + 1)],
        "configKeys": keys,
        "configValues": values,
        "runs": [
            {
                "name": drawn.name,
                "label": drawn.label,
                "status": shown(run.summary.get("status") or "unknown"),
                "modelled": drawn.modelled,
                "look": _plain(drawn.look, 0),
                "tooShort": bool(run.summary.get("too_short")),
                "cells": cells[place],
                "config": configurations[place],
            }
            for place, (run, drawn) in enumerate(zip(runs, sheet.runs, strict=True))
        ],
    }


def sections_of(sheet: Sheet) -> list[Plain]:
    """The figures as the report's scripts read them: fields by their names, curves thinned and encoded."""
    lines = [line for section in sheet.sections for f in section.figures if isinstance(f, Lines) for line in f.lines]
    return _plain(
        [section for section in sheet.sections if section.title], limit_for([len(line.curve) for line in lines])
    )


def _plain(thing: Any, limit: int) -> Any:
    if isinstance(thing, Curve):
        return encode(thin(thing, limit))
    if isinstance(thing, CurveStyle):
        return [thing.colour, thing.dash, thing.marker]
    if is_dataclass(thing):
        return {field.name: _plain(getattr(thing, field.name), limit) for field in fields(thing)}
    return [_plain(each, limit) for each in thing] if isinstance(thing, list | tuple) else thing


# -- the table


def _table(runs: list[RunData], rows: list[Plain], own: dict[str, Column]) -> tuple[list[Plain], list[list[Any]]]:
    """Columns in which anything is known, and each run's cells: [text, value to sort by]."""
    differ = [group.name for group in SHOWN if len({row.get(group.name) for row in rows}) > 1]
    order = [*FIRST_COLUMNS, *own, *(name for name in differ if name not in FIRST_COLUMNS)]
    columns = [
        (column.key, column.title, column.text, column.is_number, column.larger_first)
        for column in sorted([*compare.COLUMNS, *own.values()], key=lambda column: _rank(column.key, order))
        if column.key
        not in ("run", "status", "modelled", "too_short", "why", *(f"{kind}_mib" for kind in MEMORY_KINDS))
        and any(row.get(column.key) not in (None, column.usual) or is_too_short(row, column.key) for row in rows)
    ]
    swept = [key for key in swept_keys(runs) if key not in {column[0] for column in columns}]
    heads: list[Plain] = [
        {"title": "status", "number": False, "down": False},
        *({"title": shown(key), "number": _all_numbers(runs, key), "down": False} for key in swept),
        *({"title": shown(title), "number": is_number, "down": down} for _, title, _, is_number, down in columns),
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


def _rank(key: str, order: Sequence[str]) -> int:
    return order.index(key) if key in order else len(order)


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


def _status(run: RunData) -> str:
    status = shown(run.summary.get("status") or "unknown")
    return f"{status}, modelled" if is_modelled(run) else status


def reason(run: RunData) -> str | None:
    """Returns the reason why a run did not complete, from its last record."""
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
    values = [value for run in runs if (value := parameters(run).get(key)) is not None]
    return all(finite(value) is not None for value in values)


def _swept_cell(run: RunData, key: str) -> list[Any]:
    value = parameters(run).get(key)
    if value is None:
        return ["-", None]
    known = finite(value)
    return [shown(plain(value)) if known is None else f"{known:.6g}", known]


# -- sweeps and configurations


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
