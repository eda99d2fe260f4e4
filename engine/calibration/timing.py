"""Timing a call, and telling whether the machine was left alone meanwhile."""

import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles

BLOCKS = 5


def seconds_of(call: Callable[[int], object], budget: float) -> float:
    """Of one call, which is given how often it was called before: the median of `BLOCKS` blocks, in about `budget`
    seconds of them together."""
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
