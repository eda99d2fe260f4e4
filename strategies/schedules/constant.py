"""The same rate in every step after the warm-up.

    lr(t) = lr

Use it for a warm-up or a scaled rate with nothing else: `schedule=constant schedule.warmup=100`.
"""

from dataclasses import dataclass

from ..core.schedule import Horizon, WarmedUp


@dataclass(frozen=True, kw_only=True)
class Constant(WarmedUp):
    """1"""

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        return 1.0
