"""Names the best of each family, and why not the rest: they need too much, are slower, or are refused."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..conf.counted import counted
from .candidate import Predicted
from .limits import Missed
from .ranking import KEYS, TIE, Sort, ranked, roomy_first

MOST = 8  # lines of a family
GIB = 2**30


@dataclass(frozen=True)
class Family:
    name: str
    best: Predicted | None  # None: none fits
    others: list[str]  # a line each
    misses: bool = False  # some fit, and none of them meets budget and deadline


def families(
    fit: Sequence[Predicted],
    near: Sequence[Predicted],
    pruned: Counter[tuple[str, str]],
    sort: Sort,
    beyond: Sequence[Missed] = (),
) -> list[Family]:
    """`near`: what needs too much memory, or is refused; `pruned`: rules that were broken, and how often.

    `beyond`: what fits and misses the budget or the deadline, best first.
    """
    late = [missed.row for missed in beyond]
    names = dict.fromkeys(row.candidate.family for row in [*ranked(fit, sort), *late, *ranked(near, sort)])
    broken = [family for family, _ in pruned if family != "all"]
    found = [_family(name, fit, near, pruned, sort, beyond) for name in dict.fromkeys([*names, *broken])]
    return [family for family in found if family.best is not None or family.others]


def _family(
    name: str,
    fit: Sequence[Predicted],
    near: Sequence[Predicted],
    pruned: Counter[tuple[str, str]],
    sort: Sort,
    beyond: Sequence[Missed],
) -> Family:
    mine = roomy_first([row for row in fit if row.candidate.family == name], sort)
    best = mine[0] if mine else None
    fitting = {(row.candidate.group, row.candidate.workers) for row in mine}
    lines: list[str] = []
    if best is not None:
        lines += [beside(row, best, sort) for row in _a_group_each(mine[1:])]
    in_limits = {row.candidate.group for row in mine}
    late: dict[str, Missed] = {}
    for missed in beyond:
        if missed.row.candidate.family == name and missed.row.candidate.group not in in_limits:
            late.setdefault(missed.row.candidate.group, missed)
    lines += [f"{_group(missed.row)}: {_by_how_much(missed)}" for missed in late.values()]
    fitting |= {(m.row.candidate.group, m.row.candidate.workers) for m in beyond if m.row.candidate.family == name}
    over = [row for row in near if row.candidate.family == name]
    by_reason: dict[str, list[str]] = {}
    for row in least_over(over):
        if (row.candidate.group, row.candidate.workers) not in fitting:
            by_reason.setdefault(too_much(row), []).append(_group(row))
    lines += [f"{group}{f' and {len(more)} more' if more else ''}: {why}" for why, (group, *more) in by_reason.items()]
    lines += [f"{why} ({count}x)" for (family, why), count in pruned.items() if family == name]
    more = len(lines) - MOST
    return Family(name, best, lines if more <= 0 else [*lines[:MOST], f"and {more} more"], bool(late))


def _by_how_much(missed: Missed) -> str:
    by = [
        *([f"--budget by ${missed.dollars:,.2f}"] if missed.dollars else []),
        *([f"--deadline by {missed.seconds / 3600:,.1f} h"] if missed.seconds else []),
    ]
    return f"misses {' and '.join(by)}"


def _a_group_each(rows: Sequence[Predicted]) -> list[Predicted]:
    """Returns the best row of each group, over its numbers of workers."""
    found: dict[str, Predicted] = {}
    for row in rows:
        found.setdefault(row.candidate.group, row)
    return list(found.values())


WORDS: dict[Sort, tuple[str, str]] = {
    "time": ("slower", "faster"),
    "dollars": ("dearer", "cheaper"),
    "memory": ("more memory", "less memory"),
    "bytes": ("more bytes", "fewer bytes"),
}


def _group(row: Predicted) -> str:
    return f"{row.candidate.group} on {counted(row.candidate.workers, 'worker')}"


def beside(row: Predicted, best: Predicted, sort: Sort) -> str:
    """Says by how much a row is worse than the best, or better if it is later for another reason."""
    mine, its = KEYS[sort](row), KEYS[sort](best)
    words, better = WORDS[sort]
    if mine is None or its is None:
        unknown = row.untimed if sort in ("time", "dollars") else "what it sends, the data must say"
        return f"{_group(row)}: {unknown or 'not known'}"
    raced = f" ({row.candidate.raced})" if row.candidate.raced else ""
    tie, same = (TIE, f"within {TIE:.0%}") if sort in ("time", "dollars") else (5e-4, "the same")
    if mine < its * (1 - tie):
        return (
            f"{_group(row)}: {1 - mine / its:.0%} {better}{'' if row.roomy else ', without a margin of memory'}{raced}"
        )
    if mine <= its * (1 + tie):
        return f"{_group(row)}: {same}{raced}"
    if its <= 0:
        return f"{_group(row)}: more {words.removeprefix('more ')}{raced}"
    times = mine / its
    by = f"{times - 1:.1%}" if times < 1.01 else f"{times - 1:.0%}" if times < 2 else f"{times:.1f} times"
    return f"{_group(row)}: {by} {words}{raced}"


def least_over(rows: Sequence[Predicted]) -> list[Predicted]:
    """Returns the row of each group that exceeds the limits least."""
    found: dict[tuple[str, str, int], Predicted] = {}
    for row in sorted(rows, key=lacks):
        found.setdefault(row.candidate.kind, row)
    return list(found.values())


def lacks(row: Predicted) -> float:
    """Bytes, of a device and of a host together; what is refused lacks more than anything."""
    return float("inf") if row.why else max(row.over_device, 0) + max(row.over_host, 0)


def too_much(row: Predicted) -> str:
    if row.why:
        return f"refused: {row.why}"
    about = "" if row.exact else "about "
    over = [
        f"{about}{by / GIB:,.2f} GiB too much for a {what}"
        for by, what in ((row.over_device, "device"), (row.over_host, "host"))
        if by > 0
    ]
    return ", ".join(over) or "fits"
