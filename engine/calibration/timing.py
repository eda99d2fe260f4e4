"""Timing a call, and telling whether the machine was left alone meanwhile."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from ...cost.calibration import DIFFER

BLOCKS = 5


def seconds_of(call: Callable[[int], object], budget: float) -> float:
    """Returns the seconds of one call, which is given the number of calls before it: the median of `BLOCKS` blocks, in
    about `budget` seconds of them together.
    """
    call(0)
    call(1)
    start = time.perf_counter()
    call(2)
    once = max(time.perf_counter() - start, 1e-7)
    times = max(1, int(budget / BLOCKS / once))
    found: list[float] = []
    number = 3
    for _ in range(BLOCKS if once < budget else 2):
        start = time.perf_counter()
        for i in range(number, number + times):
            call(i)
        found.append((time.perf_counter() - start) / times)
        number += times
    return median(found)


def spread(seconds: Sequence[float]) -> float:
    """Interquartile range over the median of repeated measures; 0 where there are too few to say."""
    if len(seconds) < 4:
        return 0.0
    first, middle, third = quantiles(seconds, n=4)
    return (third - first) / middle


@dataclass
class TimedPasses:
    """Times of the same cases, pass by pass: what disturbs one pass is over when the next comes to the same case.

    The middle one counts: of three, one that was disturbed is left out. The least would be that of a machine quieter
    than the one that trains, whose steps have its usual unrest in them.
    """

    times: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, case: str, seconds: float) -> None:
        self.times.setdefault(case, []).append(seconds)

    def middle(self, case: str) -> float:
        return median(self.times[case])

    def differ(self, case: str) -> bool:
        """Returns whether its first two passes differ: one of them was disturbed, and perhaps the other, too."""
        first, second = sorted(self.times[case][:2])
        return second > (1 + DIFFER) * first

    @property
    def differing(self) -> list[str]:
        return [case for case, times in self.times.items() if len(times) > 1 and self.differ(case)]

    @property
    def share(self) -> float:
        """Returns the share of the cases that differ."""
        return len(self.differing) / len(self.times) if self.times else 0.0
