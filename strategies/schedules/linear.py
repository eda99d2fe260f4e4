"""The rate falls in a straight line (as torch's LinearLR does)."""

from typing import Annotated

from annotated_types import Ge, Gt, Le

from .base import Horizon, Scale, Unit, WarmedUp


class Linear(WarmedUp):
    """1 + (end - 1) t / T"""

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
        return 1 + (self.end - 1) * t / total
