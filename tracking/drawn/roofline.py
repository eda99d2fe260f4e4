"""A roofline (Williams, Waterman, Patterson 2009, CACM 52(4)): rates of work over its intensity, under a device's roof.

attainable = min(peak, intensity x bandwidth)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from . import svg

WIDTH, HEIGHT, LEFT, TOP = 640, 320, 96, 48  # pixels
SHAPES = (
    "M-5,0 a5,5 0 1,0 10,0 a5,5 0 1,0 -10,0",
    "M-5,-5 h10 v10 h-10 z",
    "M0,-6 L6,5 H-6 z",
    "M0,-7 L7,0 L0,7 L-7,0 z",
    "M-6,-5 H6 L0,6 z",
    "M-2,-6 h4 v4 h4 v4 h-4 v4 h-4 v-4 h-4 v-4 h4 z",
    "M-7,-2 H7 V2 H-7 z",
)


@dataclass(frozen=True)
class RooflinePoint:
    """`intensity`: flops a byte; `rate`: flops a second, of one device."""

    name: str
    intensity: float
    rate: float
    measured: bool = False


@dataclass(frozen=True)
class Roof:
    name: str
    peak: float  # flops a second
    bandwidth: float  # bytes a second

    def at(self, intensity: float) -> float:
        return min(self.peak, intensity * self.bandwidth)

    @property
    def ridge(self) -> float:
        """Flops a byte from which on the memory is no bound."""
        return self.peak / self.bandwidth


def as_svg(title: str, roof: Roof, points: Sequence[RooflinePoint]) -> str:
    usable = [each for each in points if each.intensity > 0 and each.rate > 0]
    low = math.floor(math.log10(min([roof.ridge, *(each.intensity for each in usable)]) / 3))
    high = math.ceil(math.log10(max([roof.ridge, *(each.intensity for each in usable)]) * 3))
    top = math.ceil(math.log10(roof.peak))
    bottom = math.floor(math.log10(min([roof.at(10**low), *(each.rate for each in usable)])))

    def x(intensity: float) -> float:
        return LEFT + WIDTH * (math.log10(intensity) - low) / (high - low)

    def y(rate: float) -> float:
        return TOP + HEIGHT * (top - math.log10(rate)) / ((top - bottom) or 1)

    parts = [svg.text(10, 22, title, "title")]
    for power in range(low, high + 1):
        parts.append(f'<path class="line" d="M{x(10**power):.1f},{TOP} v{HEIGHT}"/>')
        parts.append(svg.text(x(10**power), TOP + HEIGHT + 16, f"{10**power:g}", "small", "middle"))
    for power in range(bottom, top + 1):
        parts.append(f'<path class="line" d="M{LEFT},{y(10**power):.1f} h{WIDTH}"/>')
        parts.append(svg.text(LEFT - 6, y(10**power) + 4, flops(10**power), "small", "end"))
    parts.append(
        f'<path class="dark strong" d="M{x(10**low):.1f},{y(roof.at(10**low)):.1f} '
        f'L{x(roof.ridge):.1f},{y(roof.peak):.1f} H{LEFT + WIDTH}"/>'
    )
    parts.append(svg.text(LEFT + WIDTH / 2, TOP + HEIGHT + 36, "flops a byte of the device's memory", "", "middle"))
    parts.append(svg.text(LEFT + WIDTH - 4, y(roof.peak) - 6, f"{roof.name}: {flops(roof.peak)}", "small", "end"))
    for place, each in enumerate(usable):
        share = f"{each.rate / roof.at(each.intensity):.0%} of the roof there"
        said = escape(f"{each.name}: {flops(each.rate)} at {each.intensity:.3g} flops a byte, {share}")
        look = f"c{place % 7}" if not each.measured else "dark strong"
        mark = SHAPES[place % len(SHAPES)]
        parts.append(
            f'<path class="{look} point" transform="translate({x(each.intensity):.1f},{y(each.rate):.1f})" '
            f'd="{mark}"><title>{said}</title></path>'
        )
        line = TOP + 14 + 20 * place
        parts.append(f'<path class="{look}" transform="translate({LEFT + WIDTH + 22},{line - 4})" d="{mark}"/>')
        parts.append(svg.text(LEFT + WIDTH + 36, line, f"{each.name}{', measured' if each.measured else ''}", "small"))
    height = max(TOP + HEIGHT + 50, TOP + 20 * len(usable) + 20)
    return svg.document(title, in_words(roof, usable), LEFT + WIDTH + 290, height, parts)


def in_words(roof: Roof, points: Sequence[RooflinePoint]) -> str:
    told = [
        f"{roof.name}: {flops(roof.peak)} at most, and {roof.bandwidth:.3g} bytes a second, so that below "
        f"{roof.ridge:.3g} flops a byte the memory is the bound"
    ]
    for each in points:
        bound = "memory" if each.intensity < roof.ridge else "compute"
        told.append(
            f"{each.name}{' (measured)' if each.measured else ''}: {flops(each.rate)}, "
            f"{each.rate / roof.at(each.intensity):.0%} of what its {each.intensity:.3g} flops a byte allow ({bound})"
        )
    return ". ".join(told) + "."


def flops(rate: float) -> str:
    for unit, name in ((1e15, "PF/s"), (1e12, "TF/s"), (1e9, "GF/s"), (1e6, "MF/s")):
        if rate >= unit:
            return f"{rate / unit:.3g} {name}"
    return f"{rate:.3g} flops/s"
