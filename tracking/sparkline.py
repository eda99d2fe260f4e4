"""A run's curves as one line of characters each."""

import math
from collections.abc import Sequence

from .columns import METRICS
from .run_directory import Record
from .values import number

BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.:-=+*#"
Curve = list[tuple[float, float]]  # seconds of training, value
# What is drawn: the records' kind, and their key.
_CURVES = {
    "loss": ("step", "loss"),
    **{metric: ("evaluation", metric) for metric in METRICS},
    "step time": ("step", "step_time"),
}


def curves(records: Sequence[Record]) -> dict[str, Curve]:
    """Returns the curves of loss, accuracy (or R^2) and step time (seconds) in the records, over time, or over steps if
    a time is unknown.

    An asynchronous run is judged at its end: its evaluations are put in their order of time.
    """
    found: dict[str, Curve] = {}
    for name, (kind, key) in _CURVES.items():
        told = [record for record in records if record.get("kind") == kind]
        timed = all(number(record.get("time")) is not None for record in told)
        points = [(number(record.get("time" if timed else "step")), number(record.get(key))) for record in told]
        curve = [(x, y) for x, y in points if x is not None and math.isfinite(x) and y is not None]
        if curve:
            found[name] = sorted(curve, key=lambda point: point[0])
    return found


def sparkline(curve: Curve, width: int, levels: str = BLOCKS) -> str:
    """`width` characters over the curve's time, each the mean of its part; `!` where that is not finite.

    A part without a point is drawn as the one before it. Without any change: the lowest level.
    """
    first, last = curve[0][0], curve[-1][0]
    parts: list[list[float]] = [[] for _ in range(width)]
    for x, y in curve:
        share = (x - first) / (last - first) if last > first else 0.0
        parts[min(int(share * width), width - 1)].append(y)
    means = [sum(part) / len(part) / 2 if part else None for part in parts]  # halves: their differences are finite
    known = [mean for mean in means if mean is not None and math.isfinite(mean)]
    lowest, span = (min(known), max(known) - min(known)) if known else (0.0, 0.0)
    drawn, before = "", levels[0]
    for mean in means:
        if mean is not None and not math.isfinite(mean):
            before = "!"
        elif mean is not None:
            before = levels[min(int((mean - lowest) / span * len(levels)), len(levels) - 1)] if span else levels[0]
        drawn += before
    return drawn if last > first else drawn[:1]
