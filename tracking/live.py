"""The progress of each worker while a run goes on: live.json in its directory, replaced every second, gone at the end.

It is there for `paceline watch` and the view of a terminal; what the run comes to is in summary.json.
"""

import json
import math
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .files import UnusableFileError, read_json

NAME = "live.json"
KEPT = 6  # looks that rates are taken over
SLOW = 1.5  # times the median computing time of a step of the others: a straggler
LONGEST = 1000  # characters of what a worker does
SILENT = 3.0  # seconds without a sign of life


@dataclass(frozen=True)
class WorkerMetrics:
    """The live metrics of one worker or server, since it started."""

    rank: int
    kind: str  # worker, server
    part: int  # of its replica: only workers of the same part have the same work
    steps: int
    sent: int  # bytes of payload
    seconds: float  # in steps; of a server, since it started
    blocked: float  # of these
    clock: float  # s
    doing: str = ""
    silent: float = 0.0  # seconds since its last sign of life


@dataclass(frozen=True)
class WorkerRates:
    """The rates of a worker over the last reads. None: there is nothing to compute it from."""

    now: WorkerMetrics
    step_time: float | None  # s
    blocked: float | None  # share of the time in steps
    sent: float | None  # bytes a second
    computing: float | None  # s a step
    slow: float | None = None  # times the median of the others', of a straggler


def write_live(directory: Path, live_metrics: Iterable[WorkerMetrics]) -> None:
    """Replaces it, without waiting for the disk. Raises OSError."""
    file = directory / NAME
    temporary = directory / f".{NAME}.tmp"
    temporary.write_text(json.dumps({"workers": [asdict(gauge) for gauge in live_metrics]}))
    temporary.replace(file)


def forget_live(directory: Path) -> None:
    for name in (NAME, f".{NAME}.tmp"):
        with suppress(OSError):
            (directory / name).unlink()


def read_live(directory: Path) -> list[WorkerMetrics]:
    """Empty where there is none, or none that can be read."""
    try:
        content = read_json(directory / NAME)
        told = content["workers"] if isinstance(content, dict) else []
        return [_gauge(each) for each in told]
    except (OSError, UnusableFileError, KeyError, TypeError, ValueError):
        return []


def _gauge(plain: dict[str, Any]) -> WorkerMetrics:
    """Raises TypeError or ValueError."""
    gauge = WorkerMetrics(**plain)
    for name, value in plain.items():
        if name in ("kind", "doing"):
            is_right = isinstance(value, str) and len(value) <= LONGEST
        else:
            is_right = isinstance(value, int | float) and math.isfinite(value)
        if not is_right:
            raise ValueError(name)
    return gauge


class Looks:
    """The last looks at a run, and what they come to."""

    def __init__(self) -> None:
        self._looks: deque[dict[int, WorkerMetrics]] = deque(maxlen=KEPT)

    def add(self, live_metrics: list[WorkerMetrics]) -> None:
        """A look at the same as before is none."""
        look = {gauge.rank: gauge for gauge in live_metrics}
        if look and (not self._looks or look != self._looks[-1]):
            self._looks.append(look)

    def rates(self) -> list[WorkerRates]:
        """Returns the rates by rank."""
        if not self._looks:
            return []
        first, last = self._looks[0], self._looks[-1]
        found = [_rates(first.get(rank), now) for rank, now in sorted(last.items())]
        return [_judged(each, found) for each in found]


def _rates(before: WorkerMetrics | None, now: WorkerMetrics) -> WorkerRates:
    before = WorkerMetrics(now.rank, now.kind, now.part, 0, 0, 0.0, 0.0, math.inf) if before in (None, now) else before
    steps, seconds, clock = now.steps - before.steps, now.seconds - before.seconds, now.clock - before.clock
    blocked = now.blocked - before.blocked
    return WorkerRates(
        now,
        step_time=seconds / steps if steps > 0 else None,
        blocked=blocked / seconds if seconds > 0 else None,
        sent=(now.sent - before.sent) / clock if 0 < clock < math.inf else None,
        computing=(seconds - blocked) / steps if steps > 0 else None,
    )


def _judged(own: WorkerRates, everyone: list[WorkerRates]) -> WorkerRates:
    """`slow`, of one that computes for much longer in a step than the others with the same work."""
    others = [
        each.computing
        for each in everyone
        if each.computing is not None and each.now.part == own.now.part and each.now.kind == "worker" and each != own
    ]
    if own.computing is None or own.now.kind != "worker" or not others:
        return own
    usual = median(others)
    is_slow = usual > 0 and own.computing > SLOW * usual
    return WorkerRates(
        own.now, own.step_time, own.blocked, own.sent, own.computing, own.computing / usual if is_slow else None
    )
