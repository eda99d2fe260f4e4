"""The rate falls with the root of the step (Vaswani et al. 2017, "Attention Is All You Need", NeurIPS, equation 3):

    lr(t) = lr sqrt(W / (W + t))

W is the length of the warm-up, one step at least, and t counts from its end.

Deviation: the paper's rate comes out of the model's width; here its largest value is the optimizer's rate.

Use it where it is not known beforehand how long training goes on: no step needs the number of all.
"""

from dataclasses import dataclass

from ..core.schedule import Horizon, WarmedUp


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(WarmedUp):
    """sqrt(W / (W + t))"""

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        warmup = max(1, self.in_steps(self.warmup, horizon))
        return (warmup / (warmup + t)) ** 0.5
