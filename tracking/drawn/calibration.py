"""Draws the measurements of `paceline calibrate`: points, and the lines that were fitted or drawn between them.

Each line has its name beside its end, so that it can be read without colours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..figures.palette import LIGHT
from . import svg
from .axes import frame, line, mark, scale

WIDTH, HEIGHT, LEFT, TOP, RIGHT, GAP = 560, 240, 80, 70, 190, 90  # pixels of a panel, and around it
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class FittedSeries:
    """`line`: what was fitted to the points, or nothing, where it goes from point to point."""

    name: str
    points: Points
    line: Points = ()


@dataclass(frozen=True)
class Panel:
    """Both axes are logarithmic."""

    title: str
    x: str
    y: str
    series: Sequence[FittedSeries]


def as_svg(title: str, panels: Sequence[Panel]) -> str:
    parts = [svg.text(10, 20, title, "title")]
    for i, panel in enumerate(panels):
        parts += _drawn(panel, TOP + i * (HEIGHT + GAP))
    says = ". ".join(panel.title for panel in panels)
    return svg.document(title, says, LEFT + WIDTH + RIGHT, TOP + len(panels) * (HEIGHT + GAP), parts)


def _drawn(panel: Panel, top: float) -> Iterator[str]:
    every = [point for series in panel.series for point in (*series.points, *series.line)]
    xs = scale([x for x, _ in every], LEFT, LEFT + WIDTH, log=True)
    ys = scale([y for _, y in every], top + HEIGHT, top, log=True)
    yield svg.text(LEFT, top - 26, panel.title, "title")
    yield from frame(xs, ys, panel.x, panel.y)
    ends: list[float] = []
    for number, series in enumerate(panel.series):
        colour = number % len(LIGHT)
        joined = series.line or series.points
        yield f'<path class="s{colour}" d="{line(joined, xs, ys)}"/>'
        for x, y in series.points:
            yield mark("circle", xs(x), ys(y), colour, f"{series.name}: {x:.4g}, {y:.4g}")
        ends.append(_free(ys(joined[-1][1]), ends))
        yield svg.text(LEFT + WIDTH + 8, ends[-1] + 4, series.name, f"c{colour}")


def _free(y: float, taken: Sequence[float]) -> float:
    """The nearest place below where no name is."""
    while any(abs(y - other) < 13 for other in taken):
        y += 13
    return y
