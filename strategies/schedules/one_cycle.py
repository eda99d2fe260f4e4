"""One cycle up and down (Smith, Topin 2018, "Super-Convergence: Very Fast Training of Neural Networks Using Large
Learning Rates", arXiv 1708.07120), with cosines as torch's OneCycleLR has them.

With p = rise T - 1 the step of the optimizer's own rate, which is the largest:

    c(a, b, x) = b + (a - b) (1 + cos(pi x)) / 2
    lr(t) = lr c(1 / div, 1, t / p)                                          for t <= p
            lr c(1, 1 / (div final_div), (t - p) / (T - 1 - p))              from there on

Deviation: momentum stays as it is (OneCycleLR with cycle_momentum=False), where the paper lowers it as the rate rises.

Use it for runs of few epochs with a rate that is nearly too large: it has a warm-up of its own.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from ...conf.errors import ConfigError
from ..core.schedule import Horizon, Scaled


@dataclass(frozen=True, kw_only=True)
class OneCycle(Scaled):
    rise: Annotated[float, Gt(0), Lt(1)] = 0.3  # the fraction of the run that goes up
    div: Annotated[float, Ge(1)] = 25.0
    final_div: Annotated[float, Ge(1)] = 1e4

    def check(self, horizon: Horizon) -> None:
        if not 0 < self._peak(horizon) < horizon.steps - 1:
            raise ConfigError(
                f"schedule.rise={self.rise:g}: a run of {horizon.steps:,} steps is too short to rise in this fraction "
                f"of it. Choose {math.floor(1 / self.rise) + 1:,} steps or more."
            )

    def corners(self, horizon: Horizon) -> list[int]:
        return [round(self._peak(horizon))]

    def _peak(self, horizon: Horizon) -> float:
        """p"""
        return self.rise * horizon.steps - 1

    def own(self, step: int, horizon: Horizon) -> float:
        p, last = self._peak(horizon), horizon.steps - 1
        first = 1 / self.div
        if step <= p:
            return _cosine(first, 1.0, step / p)
        return _cosine(1.0, first / self.final_div, (step - p) / (last - p))


def _cosine(start: float, end: float, x: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * x)) / 2
