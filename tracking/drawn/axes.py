"""Axes of a picture: scales from values to pixels, their ticks, a frame with titles, and the marks of points."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

from ..compare import human_bytes
from ..figures.palette import DASHES, MARKERS
from . import svg

SMALL = 6.8  # pixels of a character in small letters, about
ABOUT = 5  # ticks of an axis
MOST_DECADES = 8  # of a logarithmic axis that each have a tick
DASHED: dict[str, str] = dict(zip(DASHES, ("", "7 4", "2 3", "7 3 2 3", "12 4", "12 3 2 3"), strict=True))
MARKS: dict[str, str] = dict(
    zip(
        MARKERS,
        (
            "M-4,0 a4,4 0 1,0 8,0 a4,4 0 1,0 -8,0",
            "M-3.6,-3.6 h7.2 v7.2 h-7.2 z",
            "M0,-5.2 L5.2,0 L0,5.2 L-5.2,0 z",
            "M0,-4.6 L4.6,3.6 H-4.6 z",
            "M-4,-2.4 L-2.4,-4 L0,-1.6 L2.4,-4 L4,-2.4 L1.6,0 L4,2.4 L2.4,4 L0,1.6 L-2.4,4 L-4,2.4 L-1.6,0 z",
            "M0,-5.4 L1.4,-1.7 L5.2,-1.7 L2.2,0.7 L3.2,4.4 L0,2.2 L-3.2,4.4 L-2.2,0.7 L-5.2,-1.7 L-1.4,-1.7 z",
            "M-1.5,-4.5 h3 v3 h3 v3 h-3 v3 h-3 v-3 h-3 v-3 h3 z",
            "M0,-4.8 L4.6,-1.5 L2.8,3.9 H-2.8 L-4.6,-1.5 z",
            "M-2.4,-4.2 H2.4 L4.8,0 L2.4,4.2 H-2.4 L-4.8,0 z",
            "M-4.4,-4 L4.4,4 V-4 L-4.4,4 z",
        ),
        strict=True,
    )
)


@dataclass(frozen=True)
class Scale:
    """Pixels of values: `low` is at `start`, `high` at `end`. `ticks`: values and their texts."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def shows(self, value: float) -> bool:
        """Returns whether the axis can show the value: it must be finite, and on a logarithmic axis positive."""
        return math.isfinite(value) and (value > 0 or not self.log)


def scale(
    values: Iterable[float], start: float, end: float, unit: str = "", log: bool = False, from_zero: bool = False
) -> Scale:
    """Returns a scale with some room beside the values. `from_zero`: the axis begins at 0."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
    low, high = min(known), max(known)
    if log:
        low, high = (low / 2, high * 2) if low == high else (low, high)
        room = (high / low) ** 0.05
        low, high = low / room, high * room
        ticks = _of_powers(low, high) if unit == "bytes" else _of_decades(low, high)
        return Scale(low, high, start, end, True, tuple((tick, text_of(tick, unit)) for tick in ticks))
    low = min(low, 0.0) if from_zero else low
    room = 0.05 * (high - low) or abs(high) / 2 or 1.0
    step = _step(high - low or 2 * room, unit)
    low, high = low if from_zero and low == 0 else low - room, high + room
    ticks = [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return Scale(low, high, start, end, False, tuple((tick, text_of(tick, unit)) for tick in ticks))


def ticked(values: Iterable[float], texts: Iterable[str], of: Scale) -> Scale:
    """The scale with these ticks in place of its own."""
    return Scale(of.low, of.high, of.start, of.end, of.log, tuple(zip(values, texts, strict=True)))


def _step(span: float, unit: str) -> float:
    """1, 2 or 5 times a power of ten, of a unit of bytes where there is one."""
    size = 1024.0 ** min(max(int(math.log(max(span, 1.0), 1024)), 0), 4) if unit == "bytes" else 1.0
    rough = span / size / ABOUT
    power = 10.0 ** math.floor(math.log10(rough))
    return next(times for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9)) * power * size


def _of_decades(low: float, high: float) -> list[float]:
    """Returns the ticks of a logarithmic axis. A range of few decades has 1, 2 and 5 of each: powers of ten alone would
    be one tick or two.
    """
    if high < 1000 * low:
        powers, times = range(math.floor(math.log10(low)), math.ceil(math.log10(high))), (1, 2, 5)
    else:
        first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
        powers, times = range(first, last + 1, math.ceil((last - first) / MOST_DECADES)), (1,)
    found = [factor * 10.0**power for power in powers for factor in times]
    return [float(f"{tick:.3g}") for tick in found if low <= tick <= high]


def _of_powers(low: float, high: float) -> list[float]:
    """Returns ticks at powers of two, as bytes are counted."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    return [2.0**power for power in range(first, last + 1, math.ceil((last - first + 1) / ABOUT) or 1)]


def text_of(value: float, unit: str) -> str:
    if unit == "bytes":
        return human_bytes(value).replace(".0 ", " ")
    value = float(f"{value:.10g}")
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 and value.is_integer() else f"{value:g}".replace("e+0", "e")


def frame(x: Scale, y: Scale, x_title: str, y_title: str, upright: bool = False) -> Iterator[str]:
    """A grid, ticks and titles. `upright`: the ticks of x are too many, or too long, to stand side by side."""
    left, right, top, bottom = x.start, x.end, y.end, y.start
    for value, words in y.ticks:
        yield f'<path class="line" d="M{left:.1f},{y(value):.1f} H{right:.1f}"/>'
        yield svg.text(left - 6, y(value) + 4, words, "small", "end")
    lowest = bottom
    while not upright and crowded(x):
        x = replace(x, ticks=x.ticks[::2])
    for value, words in x.ticks:
        at = x(value)
        yield f'<path class="line" d="M{at:.1f},{top:.1f} V{bottom:.1f}"/>'
        if upright:
            turned = svg.text(at + 4, bottom + 8, words, "small tick", "end")
            yield turned.replace("<text", f'<text transform="rotate(-90 {at + 4:.2f} {bottom + 8:.2f})"', 1)
        else:
            yield svg.text(at, bottom + 16, words, "small tick", "middle")
    lowest += 14 + SMALL * max((len(words) for _, words in x.ticks), default=0) if upright else 18
    yield f'<path class="dark axis" d="M{left:.1f},{top:.1f} V{bottom:.1f} H{right:.1f}"/>'
    for i, line in enumerate(x_title.split("\n")):
        yield svg.text((left + right) / 2, lowest + 18 + 16 * i, line, "", "middle")
    yield svg.text(left, top - 10, y_title)


def crowded(of: Scale) -> bool:
    """Returns whether two ticks are so close that their labels nearly touch."""
    places = [(of(value), SMALL * len(words)) for value, words in of.ticks]
    return any(right - left < (one + other) / 2 + 4 for (left, one), (right, other) in pairwise(places))


def room_for(ticks: Iterable[tuple[float, str]]) -> float:
    """Pixels that the longest text takes beside an axis."""
    return 14 + SMALL * max((len(words) for _, words in ticks), default=0)


def mark(kind: str, x: float, y: float, colour: int, title: str = "", hollow: bool = False) -> str:
    """A point. `kind`: one of the palette's markers."""
    said = f"<title>{escape(title)}</title>" if title else ""
    look = f"s{colour} strong" if hollow else f"c{colour}"
    return f'<path class="{look} mark" transform="translate({x:.2f},{y:.2f})" d="{MARKS[kind]}">{said}</path>'


def line(points: Iterable[tuple[float, float]], x: Scale, y: Scale) -> str:
    """The path through the points, with gaps where one has no place."""
    words: list[str] = []
    begun = False
    for along, value in points:
        shown = x.shows(along) and y.shows(value)
        if shown:
            words.append(f"{'L' if begun else 'M'}{x(along):.1f},{y(value):.1f}")
        begun = shown
    return " ".join(words)


def legend(x: float, y: float, names: Iterable[tuple[str, Callable[[float, float], str]]]) -> Iterator[str]:
    """Names below each other, each beside its key, which is drawn at (x, y)."""
    for i, (name, draw) in enumerate(names):
        yield draw(x, y + 18 * i)
        yield svg.text(x + 42, y + 18 * i + 4, name, "small named")
