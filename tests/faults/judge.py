"""What was tried, how it came out, and what that says about what was not tried."""

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

Z = 1.959964  # of a 95 % interval


class WrongError(AssertionError):
    """What paceline did is not what must hold."""


@dataclass(frozen=True)
class Case:
    """One thing to try. `check` gets an empty directory and raises `WrongError` when the outcome is not right."""

    kind: str
    what: str
    check: Callable[[Path], None]


@dataclass(frozen=True)
class Outcome:
    case: Case
    wrong: str | None
    seconds: float


def wilson(successes: int, tried: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927); of nothing tried it is all that is possible."""
    if tried == 0:
        return 0.0, 1.0
    share, square = successes / tried, Z * Z
    middle = (share + square / (2 * tried)) / (1 + square / tried)
    half = Z / (1 + square / tried) * sqrt(share * (1 - share) / tried + square / (4 * tried * tried))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def sample(cases: list[Case], share: float, chance: random.Random) -> list[Case]:
    """`share` of the cases of each kind, at least one."""
    chosen: list[Case] = []
    for kind in dict.fromkeys(case.kind for case in cases):
        of_kind = [case for case in cases if case.kind == kind]
        chosen += chance.sample(of_kind, min(max(round(share * len(of_kind)), 1), len(of_kind)))
    return chosen


def judge(cases: Iterable[Case], jobs: int) -> Iterator[Outcome]:
    """Try the cases, `jobs` at a time; what a wrong one wrote is kept."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(_try, cases)


def _try(case: Case) -> Outcome:
    place, start, wrong = Path(tempfile.mkdtemp(prefix="fault-")), time.monotonic(), None
    try:
        case.check(place)
    except WrongError as error:
        wrong = f"{error} (kept: {place})"
    except Exception as error:  # a mistake of ours is no proof that paceline is right
        wrong = f"the harness itself: {type(error).__name__}: {error} (kept: {place})"
    if wrong is None:
        shutil.rmtree(place, ignore_errors=True)
    return Outcome(case, wrong, time.monotonic() - start)


def table(outcomes: list[Outcome]) -> str:
    """A line for each kind: tried, right, and how often it may go wrong at most, given these."""
    kinds = list(dict.fromkeys(outcome.case.kind for outcome in outcomes))
    rows = [_row(kind, [outcome for outcome in outcomes if outcome.case.kind == kind]) for kind in kinds]
    rows.append(_row("all", outcomes))
    head = ("what was done", "tried", "right", "wrong", "right, 95 % interval", "seconds")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(text.ljust(width) if not column else text.rjust(width) for column, (text, width) in cells)
        for cells in (list(enumerate(zip(row, widths, strict=True))) for row in [head, *rows])
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:-1], "-" * len(lines[0]), lines[-1]])


def _row(name: str, outcomes: list[Outcome]) -> tuple[str, ...]:
    tried = len(outcomes)
    right = sum(outcome.wrong is None for outcome in outcomes)
    low, high = wilson(right, tried)
    seconds = sum(outcome.seconds for outcome in outcomes)
    return (
        name,
        f"{tried:,}",
        f"{right:,}",
        f"{tried - right:,}",
        f"{100 * low:.1f} to {100 * high:.1f} %",
        f"{seconds:,.0f}",
    )
