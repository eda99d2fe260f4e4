"""Which settings are first, as far as their seeds can tell.

Two means are told apart where Welch's 95 % interval of their difference leaves out 0:
m1 - m2 +- t(0.975, v) s,  s^2 = s1^2/n1 + s2^2/n2,  v = s^4 / ((s1^2/n1)^2/(n1-1) + (s2^2/n2)^2/(n2-1))
(B. L. Welch, "The generalization of 'Student's' problem when several different population variances are involved",
Biometrika 1947). One seed has no spread, so that nothing is told apart from it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from .groups import mean

RULE = "Welch's 95 % interval of the difference includes 0"


@dataclass(frozen=True)
class Setting:
    """What was chosen, and what its seeds measured. `seeds`: how many there are, those without a value included."""

    label: str
    values: tuple[float, ...]
    seeds: int

    @property
    def is_whole(self) -> bool:
        """Whether every seed has a value; a mean of those that reached a target would flatter the others."""
        return bool(self.values) and len(self.values) == self.seeds

    @property
    def mean(self) -> float:
        return fmean(self.values)

    def text(self, unit: Callable[[float], str]) -> str:
        """`0.5 s ± 0.1 s`."""
        _, half = mean(list(self.values))
        return f"{unit(self.mean)} ± {unit(half)}" if half else unit(self.mean)


def told_apart(one: Sequence[float], other: Sequence[float]) -> bool:
    if len(one) < 2 or len(other) < 2:
        return False
    return abs(fmean(one) - fmean(other)) > half_width(one, other)


def half_width(one: Sequence[float], other: Sequence[float]) -> float:
    """Of Welch's 95 % interval of the difference of two means, each of 2 values or more."""
    from scipy.special import stdtrit

    parts = [variance(values) / len(values) for values in (one, other)]
    squared = sum(parts)
    if squared == 0:  # each seed gave the same, as where bytes are counted
        return 0.0
    freedom = squared**2 / sum(part**2 / (len(v) - 1) for part, v in zip(parts, (one, other), strict=True))
    return float(stdtrit(freedom, 0.975)) * math.sqrt(squared)


def order(settings: Sequence[Setting], larger: bool = False) -> list[Setting]:
    """Those whose seeds all have a value, the best mean first."""
    return sorted((s for s in settings if s.is_whole), key=lambda s: s.mean, reverse=larger)


def first(settings: Sequence[Setting], larger: bool = False) -> list[Setting]:
    """The best mean of several seeds, and all that it cannot be told apart from; []: no setting has several seeds."""
    several = [setting for setting in order(settings, larger) if setting.seeds > 1]
    return [s for s in several if s is several[0] or not told_apart(several[0].values, s.values)]
