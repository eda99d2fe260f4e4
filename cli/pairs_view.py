"""Shows which choices go together, as a table for the terminal and as a page of the documentation."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from .output import aligned

if TYPE_CHECKING:
    from ..engine.features.pairs import Pair
    from ..engine.planning.vocabulary import TermUse

PAGE = """\
# What goes with what

<!-- Written by `paceline list pairs --format markdown`. Change what choices declare, and write it
again. -->

{accepted} of the {all} pairs of a strategy and a sync mode are accepted, with their defaults. A refusal says
what goes instead. `paceline list pairs` shows the same for your own choices, with the meaning of
each pair. [Choosing](choosing.md#limits-beyond-pairs) has the limits of optimizers and models.

The columns after the strategies say whether a sync mode takes other choices of that group than the
usual one, with `strategy=data_parallel`.

{table}

## Other groups
Of each group, the choices that a pair takes. A pair that is not listed takes the usual choice
alone.

{takers}

## Terms
Each choice declares what it needs of another choice, and what it lacks, in these terms. Knobs may
add to both.

{terms}
"""


def for_terminal(every: "Sequence[Pair]") -> str:
    """Returns a table of the pairs, the meaning of each, and which take other choices of a group."""
    strategies, modes = _names(every)
    taken = {(pair.strategy, pair.sync): "yes" if pair.accepted else "-" for pair in every}
    table = [["sync", *strategies], *([mode, *(taken[each, mode] for each in strategies)] for mode in modes)]
    meanings: dict[tuple[str, str], list[str]] = {}
    for pair in every:
        if pair.accepted:
            meanings.setdefault((pair.strategy, pair.meaning), []).append(pair.sync)
    notes: list[str] = []
    for (strategy, meaning), taking in sorted(meanings.items(), key=lambda item: (item[0][0], -len(item[1]))):
        most = max(len(modes) for (each, _), modes in meanings.items() if each == strategy)
        which = f" with {', '.join(taking)}" if len(taking) < most else ""
        notes.append(f"{strategy}{which}: {meaning}")
    takers = [f"{group}: {what} with sync={modes} and strategy={those}" for group, what, modes, those in _takers(every)]
    return "\n".join([*aligned(table, numbers_from=len(table[0])), "", *notes, *takers])


def page(every: "Sequence[Pair]", terms: "Iterable[TermUse]") -> str:
    """Returns the page as Markdown."""
    strategies, modes = _names(every)
    taken = {(pair.strategy, pair.sync): pair.accepted for pair in every}
    plain = {pair.sync: pair.takes for pair in every if pair.strategy == "data_parallel"}
    groups = list(dict.fromkeys(group for takes in plain.values() for group in takes))
    rows = [["sync", *strategies, *groups]]
    for mode in modes:
        cells = [*(taken[each, mode] for each in strategies), *(group in plain.get(mode, {}) for group in groups)]
        rows.append([f"`{mode}`", *("yes" if cell else "" for cell in cells)])
    uses = [["group", "term", "meaning", "lacking it", "needing it"]]
    for use in terms:
        term = use.term
        lacking = _some_of([*use.lacking, *use.offering], use.lacking)
        uses.append([f"`{term.group}`", term.name, term.offered, lacking, ", ".join(use.needing)])
    return PAGE.format(
        accepted=sum(taken.values()),
        all=len(taken),
        table=_table(rows),
        takers=_table([("group", "choices", "sync modes", "strategies"), *_takers(every)]),
        terms=_table(uses),
    )


def _names(every: "Sequence[Pair]") -> tuple[list[str], list[str]]:
    """Returns the strategies and the sync modes."""
    return list(dict.fromkeys(pair.strategy for pair in every)), list(dict.fromkeys(pair.sync for pair in every))


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *others])


def _takers(every: "Sequence[Pair]") -> list[tuple[str, str, str, str]]:
    """Returns which choices of a group go with which pairs: group, choices, sync modes, strategies."""
    lines: list[tuple[str, str, str, str]] = []
    for group in dict.fromkeys(group for pair in every for group in pair.takes):
        all_others = {name for pair in every for name in pair.takes.get(group, [])}
        modes: dict[tuple[str, str], list[str]] = {}  # by strategy and what is taken of the group
        for pair in every:
            if group in pair.takes:
                what = _some_of(all_others, pair.takes[group])
                modes.setdefault((pair.strategy, what), []).append(pair.sync)
        strategies: dict[tuple[str, str], list[str]] = {}
        for (strategy, what), names in modes.items():
            strategies.setdefault((what, ", ".join(names)), []).append(strategy)
        lines += [(group, what, names, ", ".join(those)) for (what, names), those in strategies.items()]
    return lines


def _some_of(every: Collection[str], names: Collection[str]) -> str:
    """Returns these names in words: `all`, `all but` a few, or the names."""
    left = sorted({*every} - {*names})
    if not left:
        return "all"
    return f"all but {', '.join(left)}" if len(left) < len(names) else ", ".join(names)
