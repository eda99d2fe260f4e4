"""The rate falls by the same factor at equal distances (He et al. 2016, "Deep Residual Learning for Image Recognition",
CVPR, divides it by ten), as torch's StepLR has it:

    lr(t) = lr gamma^floor(t / every)

t counts from the end of the warm-up.

Use it to repeat a published recipe: with schedule.unit=epochs, `every` and the warm-up are in epochs.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le

from ...conf.errors import ConfigError
from ..core.schedule import Horizon, WarmedUp


@dataclass(frozen=True, kw_only=True)
class Step(WarmedUp):
    """gamma^floor(t / every)"""

    every: Annotated[float, Gt(0)] = 30  # in `unit`
    gamma: Annotated[float, Gt(0), Le(1)] = 0.1  # the factor of each fall

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_whole("every", self.every)

    def check(self, horizon: Horizon) -> None:
        super().check(horizon)
        if self.in_steps(self.every, horizon) < 1:
            raise ConfigError(
                f"schedule.every={self.every:g}: is less than a step, of which an epoch has "
                f"{horizon.steps_per_epoch:,}. Choose a longer one."
            )

    def corners(self, horizon: Horizon) -> list[int]:
        """The first falls."""
        warmup, every = self.in_steps(self.warmup, horizon), self.in_steps(self.every, horizon)
        return [warmup, *(warmup + i * every for i in (1, 2, 3))]

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        return self.gamma ** (t // self.in_steps(self.every, horizon))
