"""The figures of `figures/spec.py` as SVG: curves, rows of bars, histograms, points over a parameter."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from statistics import fmean
from textwrap import wrap

from ..figures.leading import leading
from ..figures.palette import CurveStyle
from ..figures.spec import Against, Axis, Drawn, Figure, Histogram, Lines, PlotRow, PlotTrace, RowPlot, Series, Sheet
from . import svg
from .axes import DASHED, SMALL, Scale, crowded, frame, legend, line, mark, room_for, scale, text_of, ticked
from .style import HIGH, USUAL, MakesPicture, PlotArea

NAMED = 24  # runs in a legend
ROWS = 60  # runs in a picture of rows
NAME_CHARACTERS = 40
MARKED = 160  # points in a picture that have markers
TICKED = 12  # values of a parameter that each have a tick
BESIDE = 70.0  # pixels by which a title may be wider than the area between the axes
TOP = 44.0  # pixels above the area between the axes
PALE = 0.35  # opacity of a curve that others stand out of
NEAR = 0.25  # of the range of the values: a target further from them than that is named, and not drawn
MODELLED = "Modelled (virtual cluster)"


def drawings(sheet: Sheet, figure: Figure) -> Iterator[tuple[str, MakesPicture]]:
    """The name and the picture, which is made for an area when it is asked for; of lines one along each axis."""
    match figure:
        case Lines():
            for x in (x for x in figure.x if x.pictured):
                yield f"{_slug(figure.name)}-{_slug(x.name)}", partial(_lines, sheet, figure, x)
        case RowPlot():
            yield _slug(figure.name), partial(_rows, sheet.runs, figure)
        case Histogram():
            yield _slug(figure.name), partial(_histogram, sheet.runs, figure)
        case Against():
            yield _slug(figure.name), partial(_against, figure)
        case _:
            raise AssertionError(f"there is no picture of {figure.kind}")


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "figure"


def _document(figure: Figure, says: str, width: float, height: float, parts: Sequence[str], note: str = "") -> str:
    head = ". ".join(words for words in (MODELLED if figure.modelled else "", note) if words)
    above = [svg.text(10, 16, head, "small")] if head else []
    return svg.document(figure.name, says, width, height, [*above, *parts])


# -- lines


@dataclass(frozen=True)
class DrawnCurve:
    """A run's points. `pale`: other curves stand out."""

    run: Drawn
    points: list[tuple[float, float]]
    pale: bool = False


def _lines(sheet: Sheet, figure: Lines, x: Axis, area: PlotArea = USUAL) -> str:
    found = [(each, along) for each in figure.lines if (along := each.curve.along(x.key)) is not None]
    factor = 100.0 if figure.y.unit == "share" else 1.0
    clear = leading(sheet, figure)
    curves = [
        DrawnCurve(
            sheet.runs[each.run],
            list(zip(along.tolist(), (factor * each.curve.values).tolist(), strict=True)),
            pale=bool(clear) and each.run not in clear,
        )
        for each, along in found
    ]
    targets = {each.target for each, _ in found}
    target = factor * aim if figure.aimed and len(targets) == 1 and (aim := targets.pop()) is not None else None
    return _curves(figure, x, figure.y.title, figure.y.log, curves, area, target)


def _histogram(runs: tuple[Drawn, ...], figure: Histogram, area: PlotArea = USUAL) -> str:
    curves: list[DrawnCurve] = []
    for place, counts in zip(figure.runs, figure.counts, strict=True):
        total = sum(times for _, times in counts) or 1.0
        curves.append(DrawnCurve(runs[place], [(value, 100 * times / total) for value, times in counts]))
    return _curves(figure, figure.x, f"{figure.y.title}, %", False, curves, area, stepped=True)


def _curves(
    figure: Lines | Histogram,
    x: Axis,
    y_title: str,
    log: bool,
    curves: list[DrawnCurve],
    area: PlotArea,
    target: float | None = None,
    stepped: bool = False,
) -> str:
    """`target`: a line across. `stepped`: a level from halfway to the value before to halfway to the next."""
    along = [at for curve in curves for at, _ in curve.points]
    values = [value for curve in curves for _, value in curve.points]
    distant = target is not None and not _is_near(target, values)
    if target is not None and not distant:
        values.append(target)
    curves = sorted(curves, key=lambda curve: curve.pale)
    named = curves if len(curves) <= NAMED else [curve for curve in curves if not curve.pale]
    named = named if len(named) <= NAMED else []
    high = max(area.high, 18.0 * len(named))
    ys = scale(values, TOP + high, TOP, log=log, from_zero=stepped)
    left = 10 + room_for(ys.ticks)
    xs = scale(along, left, left + area.wide, x.unit, from_zero=not stepped)
    parts = [*frame(xs, ys, x.title, y_title)]
    if target is not None and not distant:
        parts.append(
            f'<path class="void target" stroke-dasharray="2 3" d="M{left:.1f},{ys(target):.1f} h{area.wide:g}"/>'
        )
    marked = len(along) <= MARKED
    for curve in sorted(curves, key=lambda curve: not curve.pale):  # those that stand out are on top
        path = line(_stepped(curve.points) if stepped else curve.points, xs, ys)
        parts.append(_stroke(curve.run.look, path, _label(curve.run), len(curves) > NAMED, curve.pale))
        if marked and (not curve.pale or len(curve.points) == 1):
            parts += [
                mark(curve.run.look.marker, xs(at), ys(v), curve.run.look.colour)
                for at, v in curve.points
                if ys.shows(v)
            ]
    names = [
        (_label(curve.run), partial(_key, curve.run.look, marked and not curve.pale, pale=curve.pale))
        for curve in named
    ]
    parts += legend(left + area.wide + 20, TOP + 8, names)
    pale = sum(curve.pale for curve in curves)
    note = ". ".join(
        [
            *([] if len(named) == len(curves) else [f"{len(curves)} runs"]),
            *([f"{pale} pale: not of the first two settings of the ranking"] if pale else []),
            *([f"Target: {target:g}, beyond the axis"] if distant else []),
        ]
    )
    says = f"{y_title} of {len(curves)} runs against {x.title}."
    return _document(figure, says, _width(left + area.wide, [name for name, _ in names]), TOP + high + 50, parts, note)


def _is_near(target: float, values: list[float]) -> bool:
    """Returns whether an axis that shows the target, too, keeps most of its length for the values."""
    known = [value for value in values if math.isfinite(value)]
    room = NEAR * (max(known) - min(known)) if known else 0.0
    return not room or min(known) - room <= target <= max(known) + room


def _stepped(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    for i, (at, value) in enumerate(points):
        before = (points[i - 1][0] + at) / 2 if i else at
        after = (points[i + 1][0] + at) / 2 if i + 1 < len(points) else at
        yield before, value
        yield after, value


def _stroke(look: CurveStyle, path: str, title: str, thin: bool = False, pale: bool = False) -> str:
    dashes = f' stroke-dasharray="{DASHED[look.dash]}"' if DASHED[look.dash] else ""
    width = 0.8 if thin or pale else 1.6
    dashes += f' stroke-opacity="{PALE}"' if pale else ""
    return (
        f'<path class="s{look.colour} curve" stroke-width="{width}"{dashes} d="{path}">'
        f"<title>{escape(title)}</title></path>"
    )


def _key(look: CurveStyle, marked: bool, x: float, y: float, pale: bool = False) -> str:
    drawn = _stroke(look, f"M{x:.1f},{y:.1f} h34", "", pale=pale).replace(" curve", "").replace("<title></title>", "")
    return drawn + (mark(look.marker, x + 17, y, look.colour).replace(" mark", "") if marked else "")


def _width(right: float, names: Sequence[str]) -> float:
    return right + (76 + SMALL * max(map(len, names)) if names else 24)


# -- rows


def _rows(runs: tuple[Drawn, ...], figure: RowPlot, area: PlotArea = USUAL) -> str:
    rows = figure.rows[:ROWS]
    layers = 1 + max(series.layer for series in figure.series)
    each = (26.0 if layers == 1 else 33.0) * area.high / HIGH
    names = [_label(runs[row.run]) + row.note for row in rows]
    left = 16 + SMALL * max(map(len, names))
    bottom = TOP + each * len(rows)
    shown = [
        (i, series)
        for i, series in enumerate(figure.series)
        if not series.asked and (series.mark != "bar" or any(row.values[i] for row in figure.rows))
    ]
    ends = [
        sum(row.values[i] or 0.0 for i, series in shown if series.mark == "bar" and series.layer == layer)
        for row in rows
        for layer in range(layers)
    ]
    dots = [row.values[i] or 0.0 for i, series in shown if series.mark != "bar" for row in rows]
    xs = scale([*ends, *dots], left, left + area.wide, figure.x.unit, from_zero=True)
    title = f"{figure.x.title} ({figure.note})" if figure.note else figure.x.title
    parts = [*frame(xs, Scale(0, 1, bottom, TOP), title, "")]
    for place, (row, name) in enumerate(zip(rows, names, strict=True)):
        parts.append(svg.text(left - 8, TOP + each * (place + 0.5) + 4, name, "small named", "end"))
        parts += _row(row, name, shown, xs, TOP + each * place, each, layers, figure.x.unit)
    keys = [(series.name, partial(_box, series)) for _, series in shown if series.legend]
    parts += legend(left + area.wide + 20, TOP + 8, keys)
    note = f"the first {ROWS} of {len(figure.rows)} runs" if len(figure.rows) > ROWS else ""
    says = figure.says.replace("{runs}", f"{len(rows)} runs") or f"{figure.x.title} of {len(rows)} runs."
    height = max(bottom + 50, TOP + 18 * len(keys) + 20)
    return _document(figure, says, _width(left + area.wide, [name for name, _ in keys]), height, parts, note)


def _row(
    row: PlotRow, name: str, shown: list[tuple[int, Series]], xs: Scale, top: float, each: float, layers: int, unit: str
) -> Iterator[str]:
    ends = [0.0] * layers
    high = 0.66 * each if layers == 1 else 0.34 * each
    for i, series in shown:
        value = row.values[i]
        if value is None:
            continue
        title = f"{name}, {series.name}: {text_of(value, unit)}"
        if series.mark != "bar":
            kind = "circle" if series.mark == "dot" else "diamond"
            yield mark(kind, xs(value), top + each / 2, series.colour, title, hollow=series.mark == "diamond")
        elif value:
            y = top + each * (0.17 if layers == 1 else 0.14 + 0.36 * series.layer)
            start, ends[series.layer] = ends[series.layer], ends[series.layer] + value
            yield _bar(series, xs(start), y, xs(ends[series.layer]) - xs(start), high, title)


def _bar(series: Series, x: float, y: float, width: float, height: float, title: str) -> str:
    if not series.hatched:
        return svg.bar(x, y, width, height, series.colour, title, series.pale)
    box = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    said = f"<title>{escape(title)}</title>"
    return f'<rect {box} class="s{series.colour}">{said}</rect><rect {box} fill="url(#no)" pointer-events="none"/>'


def _box(series: Series, x: float, y: float) -> str:
    if series.mark == "bar":
        return _bar(series, x, y - 6, 34, 12, series.name)
    return mark("circle" if series.mark == "dot" else "diamond", x + 17, y, series.colour, "", series.mark == "diamond")


# -- against a parameter


def _against(figure: Against, area: PlotArea = USUAL) -> str:
    several = any(len(point.runs) > 1 for trace in figure.traces for point in trace.points)
    values = list(dict.fromkeys(point.x for trace in figure.traces for point in trace.points))
    numbers = [value for value in values if isinstance(value, float)]
    named = len(numbers) < len(values)
    place = {value: float(i) if named else float(value) for i, value in enumerate(values)}
    wide = area.wide * 0.8
    seeds = wrap("(mean of the seeds, and from the lowest to the highest)", int((wide + BESIDE) / svg.LETTER))
    title = "\n".join([figure.x.title, *(seeds if several else [])])
    parts: list[str] = []
    left, lowest = 0.0, 0.0
    for number, y in enumerate(figure.panels):
        traces = [(trace, _means(trace, number, 100.0 if y.unit == "share" else 1.0)) for trace in figure.traces]
        every = [each for _, points in traces for _, mean, low, high in points for each in (mean, low, high)]
        ys = scale(every, TOP + area.high, TOP, y.unit if y.unit == "bytes" else "", y.log)
        left += 20 + room_for(ys.ticks)
        xs, upright = _parameter(figure.x, place, values, left, left + wide)
        parts += frame(xs, ys, title, f"{y.title}{', %' if y.unit == 'share' else ''}", upright)
        for trace, points in traces:
            parts += _trace(
                trace, [(place[at], mean, low, high) for at, mean, low, high in points], xs, ys, figure.joined
            )
        left += wide
        lowest = max(lowest, 14 + SMALL * max(len(words) for _, words in xs.ticks) if upright else 18.0)
    labels = [trace.label for trace in figure.traces]
    keys = [(_short(trace.label), partial(_key, _solid(trace.look), True)) for trace in figure.traces if any(labels)]
    parts += legend(left + 20, TOP + 8, keys)
    says = f"{', '.join(y.title for y in figure.panels)} against {figure.x.title}."
    height = max(TOP + area.high + lowest + 20 + 16 * title.count("\n") + 14, TOP + 18 * len(keys) + 20)
    return _document(figure, says, _width(left, [name for name, _ in keys]), height, parts)


def _solid(look: CurveStyle) -> CurveStyle:
    return CurveStyle(look.colour, "solid", look.marker)


def _means(trace: PlotTrace, panel: int, factor: float) -> list[tuple[float | str, float, float, float]]:
    """x, mean, lowest and highest, of the points of which all runs have the value."""
    found: list[tuple[float | str, float, float, float]] = []
    for point in trace.points:
        values = [factor * value for value in point.values[panel] if value is not None]
        if len(values) == len(point.runs):
            found.append((point.x, fmean(values), min(values), max(values)))
    return found


def _trace(
    trace: PlotTrace, points: list[tuple[float, float, float, float]], xs: Scale, ys: Scale, joined: bool
) -> Iterator[str]:
    colour = trace.look.colour
    shown = [point for point in points if xs.shows(point[0]) and ys.shows(point[1])]
    if joined:
        yield _stroke(_solid(trace.look), line(((x, mean) for x, mean, *_ in shown), xs, ys), trace.label)
    for x, mean, low, high in shown:
        if high > low:
            bottom, top = ys(low) if ys.shows(low) else ys.start, ys(high)
            ends = f"M{xs(x) - 3:.1f},{bottom:.1f} h6 m-3,0 V{top:.1f} m-3,0 h6"
            yield f'<path class="s{colour} range" d="{ends}"/>'
        spread = f", {low:.4g} to {high:.4g}" if high > low else ""
        yield mark(trace.look.marker, xs(x), ys(mean), colour, f"{trace.label} {mean:.4g}{spread}".strip())


def _parameter(
    x: Axis, place: dict[float | str, float], values: list[float | str], left: float, right: float
) -> tuple[Scale, bool]:
    """The axis, and whether its ticks stand upright: names do, and numbers that would overlap."""
    if any(isinstance(value, str) for value in values):
        ends = Scale(-0.5, len(values) - 0.5, left, right)
        return ticked(place.values(), [_short(str(value)) for value in values], ends), True
    numbers = sorted(place.values())
    found = scale(numbers, left, right, x.unit, x.log)
    if x.log and len(numbers) <= TICKED:
        texts = [f"{number:,.0f}" if number.is_integer() else f"{number:g}" for number in numbers]
        found = ticked(numbers, texts, found)
    elif all(number.is_integer() for number in numbers):
        found = replace(found, ticks=tuple(tick for tick in found.ticks if tick[0].is_integer()))
    return found, crowded(found)


# -- what all have


def _label(run: Drawn) -> str:
    return _short(run.name) + run.label[len(run.name) :]


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1]}…"
