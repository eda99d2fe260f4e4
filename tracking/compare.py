"""Runs side by side: one row a run, as a terminal table, Markdown, CSV or JSON."""

import csv
import difflib
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .columns import BY_KEY, COLUMNS, MEMORY_KINDS, Column, human_bytes, nearest, unknown
from .errors import TableError
from .run_directory import RunDirectory
from .summaries import Row, Summary, read, row_of
from .summaries import summary_of as recorded

FORMATS = ("table", "markdown", "csv", "json")
GAP = 2  # blanks between columns


def rows(runs: Sequence[RunDirectory | Summary], baseline: str | RunDirectory | Summary | None = None) -> list[Row]:
    """One row a run, in the order given; keys are COLUMNS' keys, units in their names, None where unknown.

    A run without a summary, or with a damaged one (status `damaged`), appears with what its metrics tell.
    With a `baseline` (a run, or the name of one of `runs`), two more keys hold speed-ups against it: of
    throughput, and of time to accuracy where both aimed at the same accuracy. Runs of another model or data
    set, and modelled runs beside measured ones, have none. Raises TableError when no run has the baseline's name.
    """
    summaries = [summary_of(run) for run in runs]
    table = [_ordered(row_of(summary)) for summary in summaries]
    if baseline is not None:
        reference = _named(summaries, baseline) if isinstance(baseline, str) else summary_of(baseline)
        for row, summary in zip(table, summaries, strict=True):
            row |= _speedups(summary, reference)
    return table


def check(run: RunDirectory) -> None:
    """Raises CorruptRunError, naming the file, when the run's summary is damaged."""
    read(run)


def sort(table: list[Row], column: str, reverse: bool = False) -> list[Row]:
    """The rows, best first by `column` (a key, or a short name: `throughput`); unknown values come last.

    Raises TableError, naming the nearest columns, when there is no such column.
    """
    chosen = _column(column, table)
    known = [row for row in table if not unknown(row[chosen.key])]
    unknown = [row for row in table if unknown(row[chosen.key])]
    return sorted(known, key=lambda row: row[chosen.key], reverse=chosen.larger_first != reverse) + unknown


def render(table: list[Row], format: str = "table", width: int | None = None, memory: bool = False) -> str:
    """The rows as text that ends with a newline. `memory`: for people, the kinds of memory instead of the rest.

    `table` is for people: with a `width` (a terminal's columns) tables that fit it, below each other where
    they must; without one plain aligned text. `markdown` is for a README. `csv` and `json` hold raw values,
    units in the names.
    Raises TableError on another format.
    """
    match format:
        case "table":
            return _plain(table, memory) if width is None else _rich(table, width, memory)
        case "markdown":
            return _markdown(table, memory)
        case "csv":
            return _csv(table)
        case "json":
            return json.dumps([{k: _json_value(v) for k, v in row.items()} for row in table], indent=2) + "\n"
    raise TableError(f"format {format!r}: must be one of {', '.join(FORMATS)}")


# Told by the run's label, or by the table's purpose: a comparison holds model and data fixed.
_NOT_FOR_PEOPLE = ("status", "modelled", "model", "data", "messages", "staleness_max", "loss")
_OF_KINDS = tuple(f"{kind}_mib" for kind in MEMORY_KINDS)
_MEMORY_VIEW = ("run", "strategy", "sync", "workers", *_OF_KINDS, "peak_memory_mib")


def _ordered(row: Row) -> Row:
    return {key: row[key] for key in BY_KEY if key in row}


def summary_of(run: RunDirectory | Summary) -> Summary:
    return run if isinstance(run, dict) else recorded(run)


def _named(summaries: list[Summary], name: str) -> Summary:
    for summary in summaries:
        if summary.get("name") == name:
            return summary
    names = [str(summary.get("name")) for summary in summaries]
    raise TableError(f"baseline {name!r} is not among the runs: {nearest(name, names)}")


def _speedups(summary: Summary, baseline: Summary) -> Row:
    """speed-up = this throughput / the baseline's = the baseline's time to accuracy / this time."""
    throughput = to_accuracy = None
    if _same(summary, baseline, "model", "data") and _modelled(summary) == _modelled(baseline):
        throughput = _ratio(summary.get("throughput"), baseline.get("throughput"))
        if _same(summary, baseline, "target_accuracy"):
            to_accuracy = _ratio(baseline.get("time_to_accuracy"), summary.get("time_to_accuracy"))
    return {"speedup_throughput": throughput, "speedup_time_to_accuracy": to_accuracy}


def _same(one: Summary, other: Summary, *keys: str) -> bool:
    return all(one.get(key) == other.get(key) for key in keys)


def _modelled(summary: Summary) -> bool:
    return bool(summary.get("modelled"))


def _ratio(above: Any, below: Any) -> float | None:
    above, below = above, below
    return above / below if above is not None and below else None


def _column(name: str, table: list[Row]) -> Column:
    keys = table[0].keys() if table else {column.key for column in COLUMNS}
    columns = [column for column in COLUMNS if column.key in keys]
    for column in columns:
        if name in (column.key, column.short):
            return column
    names = [word for column in columns for word in (column.short, column.key) if word]
    raise TableError(f"no column {name!r}: {nearest(name, names)}")


def _for_people(table: list[Row], memory: bool) -> tuple[list[Column], list[list[str]]]:
    """The columns in which anything is known that is not as usual, and each row's cells."""
    if memory:
        view = [column for key in _MEMORY_VIEW for column in COLUMNS if column.key == key]
    else:
        view = [column for column in COLUMNS if column.key not in (*_NOT_FOR_PEOPLE, *_OF_KINDS)]
    columns = [
        column for column in view if not table or any(row.get(column.key) not in (None, column.usual) for row in table)
    ]
    return columns, [[_cell(row, column) for column in columns] for row in table]


def _cell(row: Row, column: Column) -> str:
    value = row[column.key]
    if column.key == "run":
        notes = ["modelled"] if row["modelled"] else []
        notes += [row["status"]] if row["status"] not in ("completed", None) else []
        return f"{value} ({', '.join(notes)})" if notes else str(value)
    return "-" if value is None else column.text(value)


def _plain(table: list[Row], memory: bool) -> str:
    columns, cells = _for_people(table, memory)
    lines = [_titles(columns), *cells]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    aligned = [
        [
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ]
        for line in lines
    ]
    return "".join("  ".join(line).rstrip() + "\n" for line in aligned)


def _rich(table: list[Row], width: int, memory: bool) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns, cells = _for_people(table, memory)
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=True)
    for number, band in enumerate(_bands(columns, cells, width)):
        grid = Table(box=box.SIMPLE_HEAD, padding=(0, GAP, 0, 0), pad_edge=False, show_edge=False)
        for i in band:
            align = "right" if columns[i].is_number else "left"
            grid.add_column(columns[i].title, justify=align, overflow="fold")
        for line in cells:
            grid.add_row(*(Text(line[i]) for i in band))
        if number:
            console.print()
        console.print(grid)
    return text.getvalue()


def _bands(columns: list[Column], cells: list[list[str]], width: int) -> list[list[int]]:
    """Indices of the columns of each table below the other, so that none is wider than the terminal.

    Each begins with the first column, the run.
    """
    widths = [max(len(text) for text in texts) + GAP for texts in zip(_titles(columns), *cells, strict=True)]
    bands, used = [[0]], widths[0]
    for i in range(1, len(columns)):
        if used + widths[i] > width and len(bands[-1]) > 1:
            bands.append([0])
            used = widths[0]
        bands[-1].append(i)
        used += widths[i]
    return bands


def _titles(columns: list[Column]) -> list[str]:
    return [column.title for column in columns]


def _markdown(table: list[Row], memory: bool) -> str:
    columns, cells = _for_people(table, memory)
    rule = ["---:" if column.is_number else "---" for column in columns]
    lines = [_titles(columns), rule, *cells]
    return "".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |\n" for line in lines)


def _csv(table: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]) if table else [column.key for column in COLUMNS])
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def _json_value(value: Any) -> Any:
    """JSON has no NaN or infinity: strings, as in metrics.jsonl."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
