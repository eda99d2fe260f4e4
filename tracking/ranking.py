"""Ranks settings, as far as their seeds can tell them apart.

Two settings are told apart where the 95 % interval between them (intervals.py: paired by the seeds that both have)
leaves out that they are the same. The best is named only where it is told apart from each of the others. No interval is
made wider for their number: of settings that are all the same, the best has to beat the next one, too, which keeps
naming one below 5 % however many there are. One seed has no spread, so that nothing is told apart from it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from .groups import mean
from .intervals import BySeed, Interval, between


@dataclass(frozen=True)
class RankedSetting:
    """A setting and its metric with each seed. None: that run failed, or never reached the target."""

    label: str
    by_seed: BySeed

    @classmethod
    def of(cls, label: str, runs: Iterable[tuple[Any, float | None]]) -> "RankedSetting":
        """Makes a setting from (seed, value) of each run. A repeated seed is no second draw: its first run counts."""
        by_seed: dict[Any, float | None] = {}
        for seed, value in runs:
            by_seed.setdefault(seed, value)
        return cls(label, by_seed)

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(value for value in self.by_seed.values() if value is not None)

    @property
    def seeds(self) -> int:
        """Returns the number of seeds, those without a value included."""
        return len(self.by_seed)

    @property
    def is_whole(self) -> bool:
        """Returns whether every seed has a value. A mean of the seeds that reached a target would flatter the
        others.
        """
        return bool(self.values) and len(self.values) == self.seeds

    @property
    def mean(self) -> float:
        return fmean(self.values)

    def text(self, unit: Callable[[float], str]) -> str:
        """`0.5 s ± 0.1 s`."""
        _, half = mean(self.values)
        return f"{unit(self.mean)} ± {unit(half)}" if half else unit(self.mean)


def order(settings: Sequence[RankedSetting], larger: bool = False) -> list[RankedSetting]:
    """Returns the settings whose seeds all have a value, the best mean first."""
    return sorted((s for s in settings if s.is_whole), key=lambda s: s.mean, reverse=larger)


def first(settings: Sequence[RankedSetting], larger: bool = False, ratio: bool = False) -> list[RankedSetting]:
    """The best of several seeds, and all that it cannot be told apart from; []: no setting has several seeds.

    The best: of those that no other is told to be better than, the one with the best mean. Where all have the same
    seeds, that is the best mean; where they do not, a mean may be the best for its seeds.
    """
    several = [setting for setting in order(settings, larger) if setting.seeds > 1]
    if not several:
        return []

    def beats(one: RankedSetting, other: RankedSetting) -> bool:
        gap = gap_of(one, other, ratio)
        return gap.is_below if larger else gap.is_above

    best = next((s for s in several if not any(beats(other, s) for other in several)), several[0])
    return [best, *(s for s in several if s is not best and not beats(best, s))]


def gap_of(best: RankedSetting, other: RankedSetting, ratio: bool = False) -> Interval:
    """Returns the difference of the other setting to the best. `ratio`: of positive numbers, the ratio instead."""
    return between(best.by_seed, other.by_seed, ratio)


def rule_of(gaps: Iterable[Interval]) -> str:
    """Returns the reasons why these are not told apart: each rule that was used."""
    return "; ".join(dict.fromkeys(gap.rule for gap in gaps))


def compared(best: RankedSetting, settings: Sequence[RankedSetting], ratio: bool = False) -> list[dict[str, Any]]:
    """Returns values for programs: how each other setting whose seeds all have a value compares with the best."""
    others = [setting for setting in settings if setting.is_whole and setting.label != best.label]
    return [{"setting": each.label, "with": best.label, **gap_of(best, each, ratio).raw()} for each in others]
