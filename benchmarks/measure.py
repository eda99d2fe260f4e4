"""Timing two things in turn, so that a machine whose speed drifts slows both alike."""

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Outcome:
    """Medians in milliseconds; `ratio` is the median of the ratios round by round; below 1, ours is faster."""

    name: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    ratio: float | None = None
    low: float | None = None  # the smallest and the largest ratio of a round
    high: float | None = None
    target: str = ""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def alternate(
    name: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    peer_name: str,
    target: str,
    rounds: int,
) -> Outcome:
    """Call `ours` and `peer`, each giving milliseconds, in turn; one round of each comes first and is not counted."""
    ours(), peer()
    a: list[float] = []
    b: list[float] = []
    for i in range(rounds):
        first, second = (ours, peer) if i % 2 == 0 else (peer, ours)
        one, other = first(), second()
        a.append(one if i % 2 == 0 else other)
        b.append(other if i % 2 == 0 else one)
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    middle = statistics.median
    return Outcome(name, middle(a), middle(b), peer_name, middle(ratios), min(ratios), max(ratios), target)


def process_milliseconds(command: list[str], runs: int) -> float:
    """Median wall time of a whole process, one run first that is not counted."""
    times: list[float] = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])
