"""Topologies as a heat map: a cell is a pair of degrees, predicted at the left, measured at the right.

The best that was measured is ringed, what does not fit is hatched, and every cell has its number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from . import svg

CELL_WIDE, CELL_HIGH, LEFT, TOP, GAP = 86, 40, 84, 78, 90  # pixels


@dataclass(frozen=True)
class HeatMapCell:
    """Samples a second (of the best run there, where there are several); None: not known."""

    x: int
    y: int
    predicted: float | None = None
    measured: float | None = None
    fits: bool = True
    why: str = ""  # it does not


def as_svg(title: str, x: str, y: str, cells: Sequence[HeatMapCell]) -> str:
    """`x`, `y`: what the degrees are of, such as tensor and stage."""
    xs, ys = sorted({cell.x for cell in cells}), sorted({cell.y for cell in cells})
    panels = [name for name in ("predicted", "measured") if any(getattr(cell, name) is not None for cell in cells)]
    panels = panels or ["predicted"]
    wide = CELL_WIDE * len(xs)
    parts = [
        svg.text(10, 22, title, "title"),
        svg.text(10, 42, "samples a second of all workers; the darker the more", "small"),
    ]
    best = best_of(cells)
    for number, panel in enumerate(panels):
        left = LEFT + (wide + GAP) * number
        parts += [svg.text(left, TOP - 22, panel), svg.text(left, TOP - 6, f"{x} degree", "small")]
        known = [value for cell in cells if (value := getattr(cell, panel)) is not None]
        for place, degree in enumerate(xs):
            middle = left + CELL_WIDE * (place + 0.5)
            parts.append(svg.text(middle, TOP + CELL_HIGH * len(ys) + 16, f"{degree}", "", "middle"))
        for place, degree in enumerate(ys):
            parts.append(svg.text(left - 8, TOP + CELL_HIGH * (place + 0.6), f"{degree}", "", "end"))
        parts.append(svg.text(left - 74, TOP + 4, f"{y}", "small"))
        for cell in cells:
            at = (left + CELL_WIDE * xs.index(cell.x), TOP + CELL_HIGH * ys.index(cell.y))
            parts += _cell(at, cell, getattr(cell, panel), known, panel == "measured" and cell is best)
    width = LEFT + (wide + GAP) * len(panels)
    height = TOP + CELL_HIGH * len(ys) + 56
    parts.append(
        svg.text(10, height - 12, "a ring: the best measured; hatched: does not fit; empty: not known", "small")
    )
    return svg.document(title, in_words(x, y, cells), max(width, 460), height, parts)


def best_of(cells: Sequence[HeatMapCell]) -> HeatMapCell | None:
    """The fastest that was measured."""
    measured = [cell for cell in cells if cell.measured is not None]
    return max(measured, key=lambda cell: cell.measured or 0.0) if measured else None


def in_words(x: str, y: str, cells: Sequence[HeatMapCell]) -> str:
    told: list[str] = []
    best = best_of(cells)
    if best is not None:
        told.append(f"The best measured is {x} {best.x} x {y} {best.y}, {best.measured or 0.0:,.4g} samples/s")
    estimated = [cell for cell in cells if cell.predicted is not None and cell.fits]
    if estimated:
        first = max(estimated, key=lambda cell: cell.predicted or 0.0)
        told.append(f"The best predicted is {x} {first.x} x {y} {first.y}, {first.predicted or 0.0:,.4g} samples/s")
    else:
        told.append("No speed was predicted")
    without = [f"{x} {cell.x} x {y} {cell.y}" for cell in cells if not cell.fits]
    if without:
        told.append(f"{len(without)} do not fit: {', '.join(without[:6])}{', ...' if len(without) > 6 else ''}")
    return ". ".join(told) + "."


def _cell(
    at: tuple[float, float], cell: HeatMapCell, value: float | None, known: list[float], ringed: bool
) -> list[str]:
    left, top = at
    box = f'x="{left + 2:.1f}" y="{top + 2:.1f}" width="{CELL_WIDE - 4}" height="{CELL_HIGH - 4}"'
    middle = (left + CELL_WIDE / 2, top + CELL_HIGH / 2 + 4)
    if not cell.fits:
        parts = [
            f'<rect {box} class="void"/><rect {box} fill="url(#no)"/>',
            svg.text(*middle, cell.why or "does not fit", "small", "middle"),
        ]
    elif value is None:
        parts = [f'<rect {box} class="void"/>']
    else:
        share = (value - min(known)) / ((max(known) - min(known)) or 1.0)
        parts = [
            f'<rect {box} class="c0" fill-opacity="{0.08 + 0.4 * share:.2f}"/>',
            svg.text(*middle, f"{value:,.4g}", "", "middle"),
        ]
    if ringed:
        parts.append(f'<rect {box} class="dark ring" rx="8"/>')
    return parts
