"""One cycle up and down (Smith, Topin 2018, "Super-Convergence", arXiv 1708.07120), with cosines as OneCycleLR's.

With p = rise T - 1 the step of the optimizer's own rate, which is the largest:

    c(a, b, x) = b + (a - b) (1 + cos(pi x)) / 2
    factor(t) = c(1 / div, 1, t / p)                                             for t <= p
                c(1, 1 / (div final_div), (t - p) / (T - 1 - p))                 from there on

Momentum stays as it is: OneCycleLR with cycle_momentum=False.
"""

import math
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from ..errors import LayoutError
from .base import Horizon, Scale, Schedule, check_scaling, scaling


class OneCycle(Schedule):
    def __init__(
        self,
        rise: Annotated[float, Gt(0), Lt(1)] = 0.3,
        div: Annotated[float, Ge(1)] = 25.0,
        final_div: Annotated[float, Ge(1)] = 1e4,
        scale: Scale = "none",
        base_batch: Annotated[int, Gt(0)] | None = None,
    ) -> None:
        """`rise`: the fraction of the run that goes up. `scale`, `base_batch`: see `WarmedUp`. Raises `LayoutError`."""
        check_scaling(scale, base_batch)
        self.rise, self.div, self.final_div, self.base_batch = rise, div, final_div, base_batch
        self.scale: Scale = scale

    def check(self, horizon: Horizon) -> None:
        if not 0 < self.rise * horizon.steps - 1 < horizon.steps - 1:
            raise LayoutError(
                f"schedule.rise={self.rise:g}: a run of {horizon.steps:,} steps is too short to rise in this fraction "
                f"of it; choose more than {1 / self.rise:g} steps"
            )

    def factor(self, step: int, horizon: Horizon) -> float:
        p, last = self.rise * horizon.steps - 1, horizon.steps - 1
        first = 1 / self.div
        if step <= p:
            own = _cosine(first, 1.0, step / p)
        else:
            own = _cosine(1.0, first / self.final_div, (step - p) / (last - p))
        return own * scaling(self.scale, self.base_batch, horizon.batch)


def _cosine(start: float, end: float, x: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * x)) / 2
