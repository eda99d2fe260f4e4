"""Runs side by side: one row a run, as a terminal table, Markdown, CSV or JSON."""

import csv
import difflib
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import CorruptRunError, TableError
from .run_directory import Record, RunDirectory

FORMATS = ("table", "markdown", "csv", "json")
GAP = 2  # blanks between columns
DEVICE_KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")
MEMORY_KINDS = (*DEVICE_KINDS, *(f"host_{kind}" for kind in DEVICE_KINDS), "other")  # of a worker; host_: on its host
Row = dict[str, Any]
Summary = dict[str, Any]


def rows(runs: Sequence[RunDirectory | Summary], baseline: str | RunDirectory | Summary | None = None) -> list[Row]:
    """One row a run, in the order given; keys are COLUMNS' keys, units in their names, None where unknown.

    A run without a summary, or with a damaged one (status `damaged`), appears with what its metrics tell.
    With a `baseline` (a run, or the name of one of `runs`), two more keys hold speed-ups against it: of
    throughput, and of time to accuracy where both aimed at the same accuracy. Runs of another model or data
    set, and modelled runs beside measured ones, have none. Raises TableError when no run has the baseline's name.
    """
    summaries = [summary_of(run) for run in runs]
    table = [_row(summary) for summary in summaries]
    if baseline is not None:
        reference = _named(summaries, baseline) if isinstance(baseline, str) else summary_of(baseline)
        for row, summary in zip(table, summaries, strict=True):
            row |= _speedups(summary, reference)
    return table


def check(run: RunDirectory) -> None:
    """Raises CorruptRunError, naming the file, when the run's summary is damaged."""
    _read(run)


def sort(table: list[Row], column: str, reverse: bool = False) -> list[Row]:
    """The rows, best first by `column` (a key, or a short name: `throughput`); unknown values come last.

    Raises TableError, naming the nearest columns, when there is no such column.
    """
    chosen = _column(column, table)
    known = [row for row in table if not _unknown(row[chosen.key])]
    unknown = [row for row in table if _unknown(row[chosen.key])]
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


@dataclass(frozen=True)
class Column:
    key: str  # in rows, CSV and JSON
    title: str  # for people
    text: Callable[[Any], str] = str
    larger_first: bool = False
    short: str = ""  # for --sort
    usual: Any = None  # for people, no column of its own when every run has this

    @property
    def is_number(self) -> bool:
        return self.text is not str


def _fixed(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.3g}"  # modelled runs take milliseconds


def _milliseconds(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.3f}"


def _mebibytes(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _significant(value: float) -> str:
    return f"{value:.3g}"


def human_bytes(count: float) -> str:
    """1536 -> `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


COLUMNS = (
    Column("run", "run"),
    Column("status", "status"),
    Column("modelled", "modelled"),
    Column("model", "model"),
    Column("data", "data"),
    Column("strategy", "strategy"),
    Column("sync", "sync"),
    Column("partition", "partition", usual="shuffled"),
    Column("stragglers", "stragglers", usual="none"),
    Column("workers", "workers", _fixed(0)),
    Column("throughput_samples_per_s", "samples/s", _fixed(0), True, "throughput"),
    Column("step_ms", "step ms", _milliseconds, short="step"),
    Column("compute_ms", "compute ms", _milliseconds, short="compute"),
    Column("communication_ms", "comm. ms", _milliseconds, short="communication"),
    Column("waiting_ms", "wait ms", _milliseconds, short="waiting"),
    Column("peak_memory_mib", "peak MiB", _fixed(0), short="memory"),
    *(Column(f"{kind}_mib", f"{kind.replace('_', ' ')} MiB", _mebibytes, short=kind) for kind in MEMORY_KINDS),
    Column("bytes_per_step", "sent/step", human_bytes, short="bytes"),
    Column("messages", "messages", _fixed(0)),
    Column("staleness_mean", "staleness", _fixed(2), short="staleness"),
    Column("staleness_max", "max staleness", _fixed(0)),
    Column("dropped_gradients", "dropped", _fixed(0), short="dropped", usual=0),
    Column("lost_workers", "lost", _fixed(0), short="lost", usual=0),
    Column("consensus_distance", "consensus", _significant, short="consensus"),
    Column("loss", "loss", _fixed(4)),
    Column("accuracy", "accuracy", lambda value: f"{value:.2%}", True),
    Column("time_to_accuracy_s", "to acc. s", _seconds, short="time_to_accuracy"),
    Column("speedup_throughput", "speed-up", lambda value: f"{value:.2f}x", True, "speedup"),
    Column("speedup_time_to_accuracy", "speed-up to acc.", lambda value: f"{value:.2f}x", True),
)
# Told by the run's label, or by the table's purpose: a comparison holds model and data fixed.
_NOT_FOR_PEOPLE = ("status", "modelled", "model", "data", "messages", "staleness_max", "loss")
_OF_KINDS = tuple(f"{kind}_mib" for kind in MEMORY_KINDS)
_MEMORY_VIEW = ("run", "strategy", "sync", "workers", *_OF_KINDS, "peak_memory_mib")


def _row(summary: Summary) -> Row:
    """Raises ValueError where a value is of another type."""
    step, staleness, wire = (_section(summary, key) for key in ("step_time", "staleness", "wire"))
    memory = _section(summary, "memory")
    peaks = [_number(_section(summary, kind).get("process_peak")) for kind in ("memory", "server_memory")]
    return {
        "run": _text(summary.get("name")),
        "status": _text(summary.get("status")),
        "modelled": bool(summary.get("modelled")),
        "model": _text(summary.get("model")),
        "data": _text(summary.get("data")),
        "strategy": _text(summary.get("strategy")),
        "sync": _text(summary.get("sync")),
        "partition": _text(summary.get("partition")),
        "stragglers": _text(summary.get("stragglers")),
        "workers": _number(summary.get("workers")),
        "throughput_samples_per_s": _number(summary.get("throughput")),
        "step_ms": _scaled(step.get("median"), 1e3),
        "compute_ms": _scaled(step.get("compute"), 1e3),
        "communication_ms": _scaled(step.get("communication"), 1e3),
        "waiting_ms": _scaled(step.get("waiting"), 1e3),
        "peak_memory_mib": _scaled(max((peak for peak in peaks if peak is not None), default=None), 1 / 2**20),
        **{f"{kind}_mib": _scaled(memory.get(kind), 1 / 2**20) for kind in MEMORY_KINDS},
        "bytes_per_step": _number(wire.get("bytes_per_step")),
        "messages": _number(wire.get("messages")),
        "staleness_mean": _number(staleness.get("mean")),
        "staleness_max": _number(staleness.get("max")),
        "dropped_gradients": _number(summary.get("dropped")),
        "lost_workers": _count(summary, "lost"),
        "consensus_distance": _number(summary.get("consensus_distance")),
        "loss": _number(summary.get("loss")),
        "accuracy": _number(summary.get("accuracy")),
        "time_to_accuracy_s": _number(summary.get("time_to_accuracy")),
    }


def summary_of(run: RunDirectory | Summary) -> Summary:
    if isinstance(run, dict):
        return run
    try:
        return _read(run)
    except CorruptRunError:
        return _damaged(run)


def _read(run: RunDirectory) -> Summary:
    """The run's summary, or what its metrics tell. Raises CorruptRunError."""
    file = run.summary
    try:
        summary = run.read_summary()
        if summary is None:
            file = run.metrics
            summary = _from_metrics(run)
        if _row(summary)["run"] is None:
            raise ValueError("it names no run")
    except (ValueError, OSError) as error:
        raise CorruptRunError(f"{file} is damaged: {error}") from None
    return summary


def _damaged(run: RunDirectory) -> Summary:
    status = {"name": run.name, "status": "damaged"}
    try:
        summary = _from_metrics(run) | status
        _row(summary)
    except (ValueError, OSError):
        return status
    return summary


def _from_metrics(run: RunDirectory) -> Summary:
    """What is known of a run that has not written its summary: still running, killed, or out of disk."""
    summary: Summary = {"name": run.name, "status": "unfinished"}
    for record in run.records():
        summary |= _told_by(record)
    return summary


def _told_by(record: Record) -> Summary:
    match record.get("kind"):
        case "start":
            told = ("strategy", "sync", "model", "data", "partition", "stragglers", "workers", "modelled")
            return {key: record.get(key) for key in told}
        case "step":
            return {"loss": record.get("loss")}
        case "evaluation":
            return {key: record.get(key) for key in ("accuracy", "loss", "consensus_distance")}
        case "end":
            return {"status": record.get("status")}
        case "resume":
            return {"status": "unfinished"}
    return {}


def _named(summaries: list[Summary], name: str) -> Summary:
    for summary in summaries:
        if summary.get("name") == name:
            return summary
    names = [str(summary.get("name")) for summary in summaries]
    raise TableError(f"baseline {name!r} is not among the runs: {_nearest(name, names)}")


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
    above, below = _number(above), _number(below)
    return above / below if above is not None and below else None


def _section(summary: Summary, key: str) -> dict[str, Any]:
    section = summary.get(key)
    if section is not None and not isinstance(section, dict):
        raise ValueError(f"{key}={section!r} is no mapping")
    return section or {}


def _count(summary: Summary, key: str) -> int | None:
    things = summary.get(key)
    if things is not None and not isinstance(things, list):
        raise ValueError(f"{key}={things!r} is no list")
    return None if things is None else len(things)


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _number(value: Any) -> float | int | None:
    """A summary's number; JSON files hold NaN and infinities as strings."""
    if isinstance(value, str):
        return float(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{value!r} is no number")
    return value


def _scaled(value: Any, factor: float) -> float | None:
    value = _number(value)
    return None if value is None else value * factor


def _unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _column(name: str, table: list[Row]) -> Column:
    keys = table[0].keys() if table else {column.key for column in COLUMNS}
    columns = [column for column in COLUMNS if column.key in keys]
    for column in columns:
        if name in (column.key, column.short):
            return column
    names = [word for column in columns for word in (column.short, column.key) if word]
    raise TableError(f"no column {name!r}: {_nearest(name, names)}")


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names)}"


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
