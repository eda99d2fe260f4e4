"""A comparison's rows as text: for a terminal, Markdown, CSV, JSON."""

import csv
import io
import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from ..conf.groups import BY_NAME
from .columns import BY_KEY, COLUMNS, MEMORY_KINDS, SWEPT, TIMED, TOO_SHORT, Column, anything, shortened, words
from .errors import TableError
from .groups import INTERVAL
from .latex import latex_table
from .summaries import Row
from .values import finite
from .visible import visible

FORMATS = ("table", "markdown", "latex", "csv", "json")
GAP = 2  # blanks between columns
LONGEST_CELL = 10_000  # characters, of a configuration's value or of many seeds, that a person is shown
ASKED = 0  # the rank of a column that was asked for: it is shown at any width
SHORTEST_WHY = 20  # characters of a reason in a narrow table
# Told by the run's label, by other columns, or shown where runs differ in it only; --columns shows each.
_NOT_FOR_PEOPLE = (
    *("status", "modelled", "too_short", "messages", "staleness_max", "loss", "runs"),
    *("blocked", "megabytes", "updates_per_second", "epochs_to_accuracy", "rounds_to_accuracy"),
    *("steps_to_accuracy", "time_per_pass_s", "no_speedup"),
)
_OF_SPEED = ("speedup_throughput", "speedup_time_to_accuracy")  # rounded by other programs on the machine
_OF_KINDS = tuple(f"{kind}_mib" for kind in MEMORY_KINDS)
_MEMORY_VIEW = ("run", "strategy", "sync", "workers", *_OF_KINDS, "device_peak_mib", "peak_memory_mib")
_LIKE = {"accuracy": "accuracy", "bytes": "model_bytes", "loss": "loss"}  # by the end of a metric's name, the column
_SHARED = 6.5  # the rank of a choice that all rows share
_UNITS = {"%": 100.0, "KiB": 2**-10, "MiB": 2**-20, "GiB": 2**-30, "TiB": 2**-40}


def render(
    table: list[Row],
    format: str = "table",
    width: int | None = None,
    memory: bool = False,
    columns: Sequence[str] = (),
    caption: tuple[str | None, str | None] = (None, None),
) -> str:
    """The rows as text that ends with a newline. `memory`: for people, the kinds of memory instead of the rest.

    `table` is for people: with a `width` (a terminal's columns) the columns that fit it, the important ones first,
    and a line that says which are left out; without one every column. `markdown` is for a README, `latex` for a
    paper (`caption`: the table's caption and label).
    `csv` and `json` hold raw values, units in the names. `columns`: the keys to show, instead of those that say
    something.
    What a terminal, Markdown or a spreadsheet would take for a command is shown as text.
    Raises TableError on another format.
    """
    match format:
        case "table":
            shown, cells = _for_people(table, memory, columns)
            return _plain(shown, cells) if width is None else _fitted(shown, cells, width, not columns)
        case "markdown":
            return _markdown(table, memory, columns)
        case "latex":
            shown, cells = _for_people(table, memory, columns)
            numbers = [column.is_number for column in shown]
            return latex_table(_titles(shown), numbers, cells, *caption)
        case "csv":
            return _csv(_picked(table, columns))
        case "json":
            return json.dumps(finite(_picked(table, columns)), indent=2, default=str) + "\n"
    raise TableError(f"format {format!r}: must be one of {', '.join(FORMATS)}")


def facts(row: Row) -> list[tuple[str, str]]:
    """Returns the known values of one run for people: titles and values, without the row's reason (`why`)."""
    left_out = ("modelled", "too_short", "status", "runs", "others", "why")
    columns = [column_of(key, [row]) for key in row if key not in left_out and not key.endswith(INTERVAL)]
    told = [(visible(column.title), _cell(row, column)) for column in columns]
    why = row.get("disturbed")  # whole, and no word in a column
    told = [(title, visible(why) if why and title == "disturbed" else text) for title, text in told]
    return [(title, text) for title, text in told if text != "-"]


def for_people(table: list[Row], columns: Sequence[str] = ()) -> tuple[list[str], list[bool], list[list[str]]]:
    """Returns the table as `render` shows it: the titles, which columns hold numbers, each row's texts."""
    shown, cells = _for_people(table, False, columns)
    return [column.title for column in shown], [column.is_number for column in shown], cells


def _picked(table: list[Row], columns: Sequence[str]) -> list[Row]:
    if not columns:
        return table
    keys = [each for key in columns for each in (key, key + INTERVAL) if each == key or (table and each in table[0])]
    return [{key: row.get(key) for key in keys} for row in table]


def column_of(key: str, table: list[Row]) -> Column:
    """A run's own values: numbers flush right."""
    values = [row.get(key) for row in table if row.get(key) is not None]
    numbers = bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if key in BY_KEY:
        return BY_KEY[key]
    if numbers and (like := next((each for each in _LIKE if key.endswith(f"_{each}")), None)):  # a callback's own
        return Column(key, key, BY_KEY[_LIKE[like]].text, rank=SWEPT)
    return Column(key, key, anything if numbers else words, rank=SWEPT)


def _for_people(table: list[Row], memory: bool, keys: Sequence[str]) -> tuple[list[Column], list[list[str]]]:
    """The columns in which anything is known that is not as usual, and each row's cells."""
    if keys:
        columns = [column_of(key, table) for key in keys]
    else:
        there = list(table[0]) if table else [column.key for column in COLUMNS]
        view = _MEMORY_VIEW if memory else [key for key in there if key not in (*_NOT_FOR_PEOPLE, *_OF_KINDS)]
        shown = [column_of(key, table) for key in view if not (key.endswith(INTERVAL) and key not in BY_KEY)]
        columns = [column for column in shown if not table or _says_something(column, table)]
    return columns, [[_cell(row, column) for column in columns] for row in table]


def _says_something(column: Column, table: list[Row]) -> bool:
    values = [row.get(column.key) for row in table]
    if column.key in ("model", "data"):  # a comparison holds them fixed
        return len({value for value in values if value is not None}) > 1
    if column.key == "model_bytes":  # of models that are trained as they are it is told with their name
        return any(row.get("adapt") not in (None, "none") for row in table)
    return any(value not in (None, column.usual, []) for value in values) or any(
        is_too_short(row, column.key) for row in table
    )


def is_too_short(row: Row, key: str) -> bool:
    """Returns whether the row lacks a value of this column because the run was too short."""
    return key in TIMED and row.get(key) is None and bool(row.get("too_short")) and key in row


def _cell(row: Row, column: Column) -> str:
    value = row.get(column.key)
    if column.key == "run":
        notes = ["modelled"] if row["modelled"] else []
        notes += [row["status"]] if row["status"] not in ("completed", None) else []
        return visible(f"{value} ({', '.join(notes)})" if notes else str(value))
    if value is None or value == []:
        return TOO_SHORT if is_too_short(row, column.key) else "-"
    text = column.text(value)
    text = text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}..."
    if row.get("disturbed") and column.key in _OF_SPEED:
        text = f"~{text}"
    half = row.get(column.key + INTERVAL)
    return visible(f"{text} ±{_half(half, text)}" if half else text)


def _half(width: float, text: str) -> str:
    """The half width of an interval in the unit, and with the decimals, of its mean."""
    scale = next((factor for unit, factor in _UNITS.items() if text.endswith(unit)), 1.0)
    decimals = re.search(r"\.(\d+)", text)
    shown = f"{width * scale:,.{len(decimals[1]) if decimals else 0}f}"
    return shown if float(shown.replace(",", "")) else f"{width * scale:.1g}"


def _plain(columns: list[Column], cells: list[list[str]]) -> str:
    from rich.cells import cell_len

    lines = [_titles(columns), *cells]
    widths = _widths(columns, cells)
    text = ""
    for line in lines:
        blanks = [" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        padded = [
            blank + cell if column.is_number else cell + blank
            for cell, blank, column in zip(line, blanks, columns, strict=True)
        ]
        text += (" " * GAP).join(padded).rstrip() + "\n"
    return text


def _fitted(columns: list[Column], cells: list[list[str]], width: int, ranked: bool) -> str:
    """The columns that fit, the important ones first (`ranked`) or in the order given, and a line on the others."""
    if ranked:
        order = sorted(range(len(columns)), key=lambda i: _rank(columns[i], [line[i] for line in cells]))
        columns, cells = [columns[i] for i in order], [[line[i] for i in order] for line in cells]
    widths = _widths(columns, cells)
    whole = sum(widths) + GAP * (len(widths) - 1)
    if whole <= width:
        return _plain(columns, cells)
    why = len(columns) - 1 if ranked and columns[-1].key == "why" else 0  # stays, shortened where it must be
    reserved = min(widths[why], max(SHORTEST_WHY, width // 4)) if why else 0
    left = width - widths[0] - (GAP + reserved if why else 0)
    kept = [0]
    for i in range(1, len(columns)):
        if i != why and (widths[i] + GAP <= left or (ranked and columns[i].rank <= ASKED)):
            kept.append(i)
            left -= widths[i] + GAP
    dropped = [columns[i] for i in range(len(columns)) if i not in kept and i != why]
    if why:
        cells = [[*line[:why], shortened(line[why], reserved + max(left, 0))] for line in cells]
        kept.append(why)
    text = _plain([columns[i] for i in kept], [[line[i] for i in kept] for line in cells])
    return text + (_left_out(dropped, width, whole) if dropped else "")


def _rank(column: Column, texts: list[str]) -> float:
    """Returns the column's rank. A choice in which several rows differ goes before the choices that all share."""
    if column.key not in BY_NAME or len(texts) < 2:
        return column.rank
    return min(column.rank, SWEPT) if len({*texts}) > 1 else _SHARED


def _left_out(columns: list[Column], width: int, whole: int) -> str:
    """Returns a note on the columns that do not fit, by their names for --columns, and how to see them."""
    names = [visible(column.short or column.key) for column in columns]
    told = (
        f"left out to fit {width} columns: {', '.join(names)}; to see all: COLUMNS={whole}, or paceline compare with "
        f"--format markdown; to see some: paceline compare with --columns {','.join(names[:2])}"
    )
    return textwrap.fill(told, width, break_long_words=False, break_on_hyphens=False) + "\n"


def _widths(columns: list[Column], cells: list[list[str]]) -> list[int]:
    from rich.cells import cell_len

    return [max(map(cell_len, texts)) for texts in zip(_titles(columns), *cells, strict=True)]


def _titles(columns: list[Column]) -> list[str]:
    return [visible(column.title) for column in columns]


def _markdown(table: list[Row], memory: bool, keys: Sequence[str]) -> str:
    columns, cells = _for_people(table, memory, keys)
    rule = ["---:" if column.is_number else "---" for column in columns]
    lines = [_markdown_line(_titles(columns)), _line(rule), *map(_markdown_line, cells)]
    return "".join(lines)


def _markdown_line(cells: list[str]) -> str:
    return _line([re.sub(r"([\\|`<>])", r"\\\1", text) for text in cells])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _csv(table: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    keys = list(table[0]) if table else [column.key for column in COLUMNS]
    writer.writerow([_neutral(key) for key in keys])
    writer.writerows([[_csv_value(row[key]) for key in keys] for row in table])
    return text.getvalue()


def _csv_value(value: Any) -> Any:
    match value:
        case str():
            return _neutral(value)
        case None | bool() | int() | float():
            return value
        case list() if all(isinstance(item, str) for item in value):
            return _neutral(" ".join(value))
    return _neutral(json.dumps(value, default=str))


def _neutral(text: str) -> str:
    """A spreadsheet takes what begins with these for a formula; an apostrophe makes it text.

    A file that a terminal shows holds no control characters, nor what turns the direction of writing around.
    """
    shown = visible(text)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@") else shown
