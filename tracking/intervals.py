"""The difference between two settings in a metric, with a 95 % interval.

All settings take the same seeds. A seed sets the first weights and the order of samples, and with them how long every
setting takes, often by much more than settings differ. So two settings are compared seed by seed, and what a seed does
to both falls out (Student, "The probable error of a mean", Biometrika 1908):
mean(d) +- t(0.975, n - 1) s_d / sqrt(n),  d_i of the n seeds i that both have.

Times, rates and bytes are positive, and d_i = log y_i - log x_i: a seed that needs three epochs in place of two makes
the difference of two times half as large again, and leaves their ratio as it was. exp makes it an interval of the ratio
y / x, whose estimate is the geometric mean of the ratios. Of accuracies and all else d_i = y_i - x_i.

Settings that share fewer than two seeds cannot be paired. Where each of them has two seeds or more of its own, Welch's
interval of the difference of means is given, and said to be his:
m2 - m1 +- t(0.975, v) s,  s^2 = s1^2/n1 + s2^2/n2,  v = s^4 / ((s1^2/n1)^2/(n1-1) + (s2^2/n2)^2/(n2-1))
(B. L. Welch, "The generalization of 'Student's' problem when several different population variances are involved",
Biometrika 1947). Where one has a single seed there is no interval, as one seed has no spread. Which of the three it is
follows from the seeds alone, never from which is narrower.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, Literal

from .groups import mean

BySeed = Mapping[Any, float | None]  # None: the run of this seed failed, or has no such value


@dataclass(frozen=True)
class Interval:
    """The difference or ratio of the other setting to the first one. `seeds`: those for which both have a value."""

    kind: Literal["paired", "welch", "none"]
    is_ratio: bool
    seeds: tuple[Hashable, ...]
    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def is_above(self) -> bool:
        """Returns whether the interval says that the other setting has more."""
        return self.low is not None and self.low > self._same

    @property
    def is_below(self) -> bool:
        return self.high is not None and self.high < self._same

    @property
    def _same(self) -> float:
        return 1.0 if self.is_ratio else 0.0

    @property
    def rule(self) -> str:
        """Returns the reason why two settings are not told apart."""
        if self.kind == "welch":
            return "Welch's 95 % interval of the difference includes 0, without two seeds in common"
        if self.kind == "none":
            return "there is no interval without two seeds in common"
        of = "ratio" if self.is_ratio else "difference"
        return f"the paired 95 % interval of the {of} by seed includes {self._same:g}"

    def text(self, unit: Callable[[float], str], times: str = "times as much") -> str:
        """`1.03 times as much (95 % interval 1.01 to 1.05, paired by 3 seeds)`."""
        shown = "{:.4g}".format if self.is_ratio else unit
        more = times if self.is_ratio else "more" if self.estimate >= 0 else "less"
        much = f"{shown(abs(self.estimate))} {more}"
        if self.low is None or self.high is None:
            return f"{much} (no interval: {_seeds(self.seeds)} in common)"
        low, high = (f"{'-' if end < 0 else ''}{shown(abs(end))}" for end in (self.low, self.high))
        paired = f"paired by {_seeds(self.seeds)}"
        how = paired if self.kind == "paired" else f"Welch's and not paired: {_seeds(self.seeds)} in common"
        return f"{much} (95 % interval {low} to {high}, {how})"

    def raw(self) -> dict[str, Any]:
        return {
            "interval": None if self.kind == "none" else self.kind,
            "of": "ratio" if self.is_ratio else "difference",
            "common_seeds": list(self.seeds),
            "estimate": self.estimate,
            "low": self.low,
            "high": self.high,
            "told_apart": self.is_above or self.is_below,
        }


def between(one: BySeed, other: BySeed, ratio: bool = False) -> Interval:
    """`ratio`: how many times as much the other has; where one of the values is not positive, the difference."""
    common = [(seed, x, y) for seed, x in one.items() if x is not None and (y := other.get(seed)) is not None]
    xs, ys = _values(one), _values(other)
    as_ratio = ratio and min(*xs, *ys) > 0
    seeds = tuple(seed for seed, _, _ in common)
    if len(common) >= 2:
        if as_ratio:
            low, centre, high = map(math.exp, _student([math.log(y) - math.log(x) for _, x, y in common]))
        else:
            low, centre, high = _student([y - x for _, x, y in common])
        return Interval("paired", as_ratio, seeds, centre, low, high)
    if len(xs) >= 2 and len(ys) >= 2:
        centre, half = fmean(ys) - fmean(xs), welch(xs, ys)
        return Interval("welch", False, seeds, centre, centre - half, centre + half)
    x, y = common[0][1:] if common else (fmean(xs), fmean(ys))
    return Interval("none", as_ratio, seeds, y / x if as_ratio else y - x)


def welch(one: Sequence[float], other: Sequence[float]) -> float:
    """Half width of his 95 % interval of the difference of two means, each of 2 values or more."""
    from scipy.special import stdtrit

    parts = [variance(values) / len(values) for values in (one, other)]
    squared = sum(parts)
    if squared == 0:  # each seed gave the same, as where bytes are counted
        return 0.0
    freedom = squared**2 / sum(part**2 / (len(v) - 1) for part, v in zip(parts, (one, other), strict=True))
    return float(stdtrit(freedom, 0.975)) * math.sqrt(squared)


def _student(differences: Sequence[float]) -> tuple[float, float, float]:
    centre, half = mean(differences)
    return centre - (half or 0.0), centre, centre + (half or 0.0)


def _values(by_seed: BySeed) -> list[float]:
    return [value for value in by_seed.values() if value is not None]


def _seeds(seeds: Sequence[Hashable]) -> str:
    return f"{len(seeds) or 'no'} seed{'' if len(seeds) == 1 else 's'}"
