"""The same rate in every step after the warm-up."""

from .base import Horizon, WarmedUp


class Constant(WarmedUp):
    """1"""

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        return 1.0
