"""The rate falls by the same factor at equal distances (as torch's StepLR has it)."""

from typing import Annotated

from annotated_types import Ge, Gt, Le

from .base import Horizon, Scale, Unit, WarmedUp


class Step(WarmedUp):
    """gamma^floor(t / every), every counted from the end of the warm-up"""

    def __init__(
        self,
        every: Annotated[float, Gt(0)] = 30,
        gamma: Annotated[float, Gt(0), Le(1)] = 0.1,
        warmup: Annotated[float, Ge(0)] = 0,
        warmup_from: Annotated[float, Ge(0), Le(1)] = 0.0,
        unit: Unit = "steps",
        scale: Scale = "none",
        base_batch: Annotated[int, Gt(0)] | None = None,
    ) -> None:
        """`every`: in `unit`. `gamma`: the factor of each fall. The others: see `WarmedUp`."""
        super().__init__(warmup, warmup_from, unit, scale, base_batch)
        self.every, self.gamma = every, gamma

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        return self.gamma ** (t // max(1, self.in_steps(self.every, horizon)))
