"""What `paceline calibrate` measured, as SVG: points, and the lines that were fitted or drawn between them.

It runs no script and loads no file. Each line has its name beside its end, so that it can be read without colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from .figures.palette import LIGHT

WIDTH, HEIGHT, LEFT, TOP, RIGHT, GAP = 560, 260, 80, 50, 190, 70  # pixels of a panel, and around it
STYLE = """
text { font: 12px sans-serif; fill: #222 }
.title { font-weight: bold; font-size: 13px }
.small { font-size: 11px; fill: #555 }
.grid { stroke: #ddd }
"""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
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
    series: Sequence[Series]


def as_svg(title: str, panels: Sequence[Panel]) -> str:
    whole, tall = LEFT + WIDTH + RIGHT, TOP + len(panels) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {tall}" width="{whole}" height="{tall}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<text x="10" y="20" class="title">{escape(title)}</text>',
        *(line for i, panel in enumerate(panels) for line in _drawn(panel, TOP + i * (HEIGHT + GAP))),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _drawn(panel: Panel, top: float) -> list[str]:
    every = [point for series in panel.series for point in (*series.points, *series.line)]
    (low, high), (bottom, above) = (_decades([point[i] for point in every]) for i in (0, 1))

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x, y = log10(point[0]), log10(point[1])
        return LEFT + WIDTH * (x - low) / (high - low), top + HEIGHT * (1 - (y - bottom) / (above - bottom))

    parts = [f'<text x="{LEFT}" y="{top - 8:g}" class="title">{escape(panel.title)}</text>']
    for decade in range(low, high + 1):
        x, _ = at((10.0**decade, 10.0**bottom))
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top:g}" x2="{x:.1f}" y2="{top + HEIGHT:g}"/>')
        parts.append(
            f'<text class="small" x="{x:.1f}" y="{top + HEIGHT + 14:g}" text-anchor="middle">1e{decade}</text>'
        )
    for decade in range(bottom, above + 1):
        _, y = at((10.0**low, 10.0**decade))
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + WIDTH}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">1e{decade}</text>')
    parts.append(
        f'<text class="small" x="{LEFT}" y="{top + HEIGHT + 30:g}">{escape(f"{panel.x}; upwards: {panel.y}")}</text>'
    )
    ends: list[float] = []
    for number, series in enumerate(panel.series):
        colour = LIGHT[number % len(LIGHT)]
        line = [at(point) for point in series.line or series.points]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}"/>')
        parts += [_marked(series.name, point, at(point), colour) for point in series.points]
        ends.append(_free(line[-1][1], ends))
        parts.append(
            f'<text x="{LEFT + WIDTH + 8}" y="{ends[-1] + 4:.1f}" fill="{colour}">{escape(series.name)}</text>'
        )
    return parts


def _marked(name: str, point: tuple[float, float], at: tuple[float, float], colour: str) -> str:
    says = escape(f"{name}: {point[0]:.4g}, {point[1]:.4g}")
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3" fill="{colour}"><title>{says}</title></circle>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return low, max(high, low + 1)


def _free(y: float, taken: Sequence[float]) -> float:
    """The nearest place below where no name is."""
    while any(abs(y - other) < 13 for other in taken):
        y += 13
    return y
