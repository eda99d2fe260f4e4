"""Half a cosine (Loshchilov, Hutter 2017, "SGDR", arXiv 1608.03983, equation 5, without restarts)."""

import math
from typing import Annotated

from annotated_types import Ge, Gt, Le

from .base import Horizon, Scale, Unit, WarmedUp


class Cosine(WarmedUp):
    """end + (1 - end) (1 + cos(pi t / T)) / 2"""

    def __init__(
        self,
        end: Annotated[float, Ge(0), Le(1)] = 0.0,
        warmup: Annotated[float, Ge(0)] = 0,
        warmup_from: Annotated[float, Ge(0), Le(1)] = 0.0,
        unit: Unit = "steps",
        scale: Scale = "none",
        base_batch: Annotated[int, Gt(0)] | None = None,
    ) -> None:
        """`end`: the factor at T. The others: see `WarmedUp`."""
        super().__init__(warmup, warmup_from, unit, scale, base_batch)
        self.end = end

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * t / total)) / 2
