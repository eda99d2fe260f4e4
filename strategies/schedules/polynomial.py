"""A power of what is left of the run (as torch's PolynomialLR has it)."""

from typing import Annotated

from annotated_types import Ge, Gt, Le

from .base import Horizon, Scale, Unit, WarmedUp


class Polynomial(WarmedUp):
    """end + (1 - end) (1 - t / T)^power"""

    def __init__(
        self,
        power: Annotated[float, Gt(0)] = 2.0,
        end: Annotated[float, Ge(0), Le(1)] = 0.0,
        warmup: Annotated[float, Ge(0)] = 0,
        warmup_from: Annotated[float, Ge(0), Le(1)] = 0.0,
        unit: Unit = "steps",
        scale: Scale = "none",
        base_batch: Annotated[int, Gt(0)] | None = None,
    ) -> None:
        """`power`: 1 is a straight line. `end`: the factor at T. The others: see `WarmedUp`."""
        super().__init__(warmup, warmup_from, unit, scale, base_batch)
        self.power, self.end = power, end

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        return self.end + (1 - self.end) * (1 - t / total) ** self.power
