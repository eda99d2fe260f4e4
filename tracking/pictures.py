"""Draws figures as PNG and PDF files, for papers: the matplotlib side of figures/spec.py."""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .compare import human_bytes
from .errors import StorageError
from .figures.built import sheet_of
from .figures.palette import DASHES, LIGHT, MARKERS, Look
from .figures.request import Request
from .figures.spec import Against, Axis, Drawn, Figure, Histogram, Lines, Row, Rows, Series, Sheet, Trace
from .run_data import RunData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure as Canvas

DOTS_PER_INCH = 200
NAMED = 24  # runs in a legend
ROWS = 60  # runs in a picture of rows
NAME_CHARACTERS = 40
MARKED = 160  # points in a picture that have markers
TICKED = 12  # values of a parameter that each have a tick
ROOM = 30  # letters of ticks that fit side by side
GRID = "#e6eaee"
# On/off lengths and markers of matplotlib's for the palette's names.
_DASHES: dict[str, tuple[float, ...]] = dict(
    zip(DASHES, [(), (5, 2), (1, 1.5), (5, 1.5, 1, 1.5), (9, 3), (9, 2, 1, 2)], strict=True)
)
_MARKERS: dict[str, str] = dict(zip(MARKERS, "osD^X*Pphd", strict=True))


def write_pictures(
    runs: list[RunData], directory: Path, requests: Sequence[Request] = (), alone: bool = False
) -> list[Path]:
    """Each figure that is to be pictured, as .png and .pdf. Raises StorageError when one cannot be written.

    What no run knows has no picture. Modelled runs have pictures of their own, whose names begin with modelled-.
    `requests`: figures over parameters, of which TableError is raised where the runs lack what is asked for; `alone`:
    these and no other.
    """
    sheet = sheet_of(runs, requests=requests)
    figures = [figure for section in sheet.sections for figure in section.figures if figure.pictured]
    if alone:
        figures = [figure for figure in figures if isinstance(figure, Against)]
    return draw(sheet, sorted(figures, key=lambda figure: figure.modelled), directory)


def draw(sheet: Sheet, figures: list[Figure], directory: Path) -> list[Path]:
    """Returns the files, and makes no directory for none. Raises StorageError."""
    if not figures:
        return []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return [
            file
            for figure in figures
            for name, make in canvases(sheet, figure)
            for file in _write(make(), directory / (f"modelled-{name}" if figure.modelled else name), figure.modelled)
        ]
    except OSError as error:
        raise StorageError(f"cannot write pictures to {directory}: {error.strerror or error}") from error


def canvases(sheet: Sheet, figure: Figure) -> "Iterator[tuple[str, Callable[[], Canvas]]]":
    """The name and the picture, which is made when it is asked for; of lines one along each axis."""
    match figure:
        case Lines():
            for x in (x for x in figure.x if x.pictured):
                yield f"{_slug(figure.name)}-{_slug(x.name)}", partial(_lines, sheet.runs, figure, x)
        case Rows():
            yield _slug(figure.name), partial(_rows, sheet.runs, figure)
        case Histogram():
            yield _slug(figure.name), partial(_histogram, sheet.runs, figure)
        case Against():
            yield _slug(figure.name), partial(_against, figure)
        case _:
            raise AssertionError(f"there is no picture of {figure.kind}")


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "figure"


def _write(canvas: "Canvas", stem: Path, modelled: bool) -> list[Path]:
    if modelled:
        canvas.suptitle("Modelled (virtual cluster)", fontsize=10)
    files = []
    for suffix, unknown in ((".png", {"Software": None}), (".pdf", {"CreationDate": None, "Producer": None})):
        content = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # shown as a box
            canvas.savefig(content, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=unknown)
        file = stem.with_name(stem.name + suffix)
        file.write_bytes(content.getvalue())
        files.append(file)
    return files


# -- lines


def _lines(runs: tuple[Drawn, ...], figure: Lines, x: Axis) -> "Canvas":
    drawn = [(runs[line.run], line, along) for line in figure.lines if (along := line.curve.along(x.key)) is not None]
    canvas, axes = _canvas(6.4, _height_for(len(drawn)))
    factor = 100.0 if figure.y.unit == "share" else 1.0
    marks = [
        axes.plot(along, factor * line.curve.values, **_style(run.look, len(line.curve), len(drawn)))[0]
        for run, line, along in drawn
    ]
    targets = {line.target for _, line, _ in drawn}
    if figure.aimed and len(targets) == 1 and (target := targets.pop()) is not None:
        across = axes.get_yaxis_transform()
        axes.hlines(factor * target, 0, 1, "#55606c", (0, _DASHES["dot"]), linewidths=0.8, transform=across, zorder=0)
    axes.set_xlabel(x.title)
    axes.set_ylabel(figure.y.title)
    axes.grid(True, color=GRID, linewidth=0.6)
    if x.unit == "bytes":
        _ticks_of_bytes(axes.xaxis, max(float(along.max()) for *_, along in drawn))
    _name_runs(axes, marks, [run for run, *_ in drawn])
    return canvas


def _histogram(runs: tuple[Drawn, ...], figure: Histogram) -> "Canvas":
    canvas, axes = _canvas(6.4, _height_for(len(figure.runs)))
    marks: list[Any] = []
    for place, counts in zip(figure.runs, figure.counts, strict=True):
        total = sum(times for _, times in counts) or 1.0
        style: dict[str, Any] = _style(runs[place].look, len(counts), len(figure.runs))
        style["drawstyle"] = "steps-mid"
        values, shares = zip(*((value, 100 * times / total) for value, times in counts), strict=True)
        marks.append(axes.plot(values, shares, **style)[0])
    axes.set_xlabel(figure.x.title)
    axes.set_ylabel(f"{figure.y.title}, %")
    axes.grid(True, color=GRID, linewidth=0.6)
    _name_runs(axes, marks, [runs[place] for place in figure.runs])
    return canvas


def _height_for(lines: int) -> float:
    return max(3.6, 0.21 * lines + 0.9) if lines <= NAMED else 3.6


def _style(appearance: Look, points: int, runs: int) -> dict[str, Any]:
    dash = _DASHES[appearance.dash]
    return {
        "color": LIGHT[appearance.colour],
        "linewidth": 1.4 if runs <= NAMED else 0.7,
        "linestyle": (0, dash) if dash else "-",
        "marker": _MARKERS[appearance.marker] if points * runs <= MARKED else None,
        "markersize": 4,
    }


def _name_runs(axes: "Axes", marks: list[Any], runs: list[Drawn]) -> None:
    if len(runs) <= NAMED:
        _legend(axes, marks, [_label(run) for run in runs], 3.2)
    else:
        axes.set_title(f"{len(runs)} runs", fontsize=9, loc="left")


def _legend(axes: "Axes", marks: list[Any], names: list[str], length: float = 2.0) -> None:
    legend = axes.legend(
        marks, [""] * len(marks), fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0),
        handlelength=length,
    )  # fmt: skip
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)  # a $ begins no formula
        text.set_text(name)  # not given to legend(), which leaves out names that begin with _


def _ticks_of_bytes(axis: "XAxis | YAxis", top: float) -> None:
    """0, 20 MiB, 40 MiB, ...: about five, of 1, 2 or 5 times a power of ten of a unit."""
    unit = 1024.0 ** min(int(math.log(max(top, 1.0), 1024)), 4)
    rough = top / unit / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    distance = next(times for times in (1, 2, 5, 10) if times * power >= rough) * power * unit
    ticks = [i * distance for i in range(int(top / distance) + 1)]
    axis.set_ticks(ticks, [human_bytes(tick).replace(".0 ", " ") for tick in ticks])


# -- rows


def _rows(runs: tuple[Drawn, ...], figure: Rows) -> "Canvas":
    rows = figure.rows[:ROWS]
    layers = 1 + max(series.layer for series in figure.series)
    canvas, axes = _canvas(6.4, 1.3 + (0.27 if layers == 1 else 0.34) * len(rows))
    axes.set_yticks(range(len(rows)), [_label(runs[row.run]) + row.note for row in rows])
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(f"{figure.x.title} ({figure.note})" if figure.note else figure.x.title)
    axes.grid(True, axis="x", color=GRID, linewidth=0.6)
    if len(figure.rows) > ROWS:
        axes.set_title(f"the first {ROWS} of {len(figure.rows)} runs", fontsize=9, loc="left")
    marks = list(_marks(axes, figure, rows, layers))
    if figure.x.unit == "bytes":
        _ticks_of_bytes(axes.xaxis, max((value or 0.0) for row in rows for value in row.values))
    named = [(series.name, mark) for series, mark in marks if series.legend]
    if named:
        _legend(axes, [mark for _, mark in named], [name for name, _ in named])
    return canvas


def _marks(axes: "Axes", figure: Rows, rows: tuple[Row, ...], layers: int) -> "Iterator[tuple[Series, Any]]":
    ends = [[0.0] * len(rows) for _ in range(layers)]
    shown = {
        series.name
        for i, series in enumerate(figure.series)
        if not series.asked and any(row.values[i] for row in figure.rows)
    }
    for i, series in enumerate(figure.series):
        if series.name not in shown:
            continue
        values = [row.values[i] for row in rows]
        if series.mark == "bar":
            widths = [value or 0.0 for value in values]
            yield series, _bar(axes, series, widths, ends[series.layer], layers)
            ends[series.layer] = [end + width for end, width in zip(ends[series.layer], widths, strict=True)]
        else:
            known = [(value, place) for place, value in enumerate(values) if value is not None]
            yield series, _dots(axes, series, known)


def _bar(axes: "Axes", series: Series, widths: list[float], left: list[float], layers: int) -> Any:
    colour = LIGHT[series.colour]
    height, offset = (0.66, 0.0) if layers == 1 else (0.32, -0.18 + 0.36 * series.layer)
    return axes.barh(
        [place + offset for place in range(len(widths))], widths, left=left, height=height,
        alpha=0.5 if series.pale else 1.0, color="white" if series.hatched else colour,
        edgecolor=colour if series.hatched else "none", hatch="////" if series.hatched else None,
    )  # fmt: skip


def _dots(axes: "Axes", series: Series, known: list[tuple[float, int]]) -> Any:
    symbol, size, face = ("o", 5, LIGHT[series.colour]) if series.mark == "dot" else ("D", 8, "none")
    colours: dict[str, Any] = {"color": LIGHT[series.colour], "markerfacecolor": face}
    return axes.plot(
        [value for value, _ in known], [place for _, place in known],
        linestyle="", marker=symbol, markersize=size, clip_on=False, **colours,
    )[0]  # fmt: skip


# -- against a parameter


def _against(figure: Against) -> "Canvas":
    from matplotlib.figure import Figure as Canvas

    count = len(figure.panels)
    several = any(len(point.runs) > 1 for trace in figure.traces for point in trace.points)
    title = f"{figure.x.title}\n(mean of the seeds,\nand from the lowest to the highest)" if several else figure.x.title
    canvas = Canvas(figsize=(4.6 * count, 3.6), layout="constrained")
    for number, (axes, y) in enumerate(zip(canvas.subplots(1, count, squeeze=False)[0], figure.panels, strict=True)):
        marks = [(trace, _trace(axes, trace, number, figure, y)) for trace in figure.traces]
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.set_xlabel(title, fontsize=9)
        axes.set_title(f"{y.title}{', %' if y.unit == 'share' else ''}", fontsize=10)
        axes.grid(True, color=GRID, linewidth=0.6)
        _scale(axes, figure, y)
        named = [(trace.label, mark) for trace, mark in marks if trace.label and mark is not None]
        if named and number == count - 1:
            _legend(axes, [mark for _, mark in named], [_short(label) for label, _ in named])
    return canvas


def _trace(axes: "Axes", trace: Trace, panel: int, figure: Against, y: Axis) -> Any:
    """None: no setting has all of its values."""
    factor = 100.0 if y.unit == "share" else 1.0
    points: list[tuple[Any, float, float, float]] = []
    for point in trace.points:
        values = [factor * value for value in point.values[panel] if value is not None]
        if len(values) == len(point.runs):
            points.append((point.x, fmean(values), min(values), max(values)))
    if not points:
        return None
    xs, means, lows, highs = zip(*points, strict=True)
    spread = [  # the mean of equal numbers may be rounded past them
        [max(0.0, mean - low) for mean, low in zip(means, lows, strict=True)],
        [max(0.0, high - mean) for mean, high in zip(means, highs, strict=True)],
    ]
    return axes.errorbar(
        xs, means, yerr=spread, color=LIGHT[trace.look.colour], marker=_MARKERS[trace.look.marker], markersize=5,
        capsize=3, linewidth=1.2, linestyle="-" if figure.joined else "none",
    )  # fmt: skip


def _scale(axes: "Axes", figure: Against, y: Axis) -> None:
    values = {point.x for trace in figure.traces for point in trace.points}
    numbers = sorted(value for value in values if isinstance(value, float))
    if y.log:
        axes.set_yscale("log")
        _ticks_of_few_decades(axes.yaxis)
    elif y.unit == "bytes":
        _ticks_of_bytes(axes.yaxis, axes.get_ylim()[1])
    if figure.x.log:
        axes.set_xscale("log", base=2)
    if len(numbers) < len(values):
        axes.tick_params(axis="x", labelrotation=90, labelsize=8)
        for text in axes.get_xticklabels():
            text.set_parse_math(False)
    elif figure.x.unit == "bytes":
        _ticks_of_bytes(axes.xaxis, numbers[-1])
    elif not figure.x.log:
        axes.locator_params(axis="x", integer=all(number.is_integer() for number in numbers))
    elif len(numbers) <= TICKED:
        ticks = [f"{number:,.0f}" if number.is_integer() else f"{number:g}" for number in numbers]
        upright = sum(map(len, ticks)) > ROOM or _crowded(numbers, ticks)
        axes.set_xticks(numbers, ticks, rotation=90 if upright else 0)
        axes.minorticks_off()


def _crowded(numbers: list[float], ticks: list[str]) -> bool:
    """Whether two neighbours on a logarithmic axis are nearer than half of both their ticks' letters."""
    letters = [ROOM * math.log(right / left) / math.log(numbers[-1] / numbers[0]) for left, right in pairwise(numbers)]
    return any(room < (len(a) + len(b)) / 2 for room, (a, b) in zip(letters, pairwise(ticks), strict=True))


def _ticks_of_few_decades(axis: "XAxis | YAxis") -> None:
    """1, 2 and 5 of each, as numbers: powers of ten alone would be one tick or two."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = axis.get_view_interval()
    if 0 < high < 1000 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


# -- what all have


def _canvas(width: float, height: float) -> "tuple[Canvas, Axes]":
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width, height), layout="constrained")
    axes = canvas.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return canvas, axes


def _label(run: Drawn) -> str:
    return _short(run.name) + run.label[len(run.name) :]


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1]}…"
