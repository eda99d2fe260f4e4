"""The rate falls with the root of the step (Vaswani et al. 2017, "Attention Is All You Need", equation 3)."""

from .base import Horizon, WarmedUp


class InverseSqrt(WarmedUp):
    """sqrt(W / (W + t)), W the steps of the warm-up, 1 at least"""

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        warmup = max(1, self.in_steps(self.warmup, horizon))
        return (warmup / (warmup + t)) ** 0.5
