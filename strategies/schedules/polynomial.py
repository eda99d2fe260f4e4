"""A power of what is left of the run (You et al. 2017, "Large Batch Training of Convolutional Networks", uses the
square), as torch's PolynomialLR has it:

    lr(t) = lr (end + (1 - end) (1 - t / T)^power)

T is what is left of the run after the warm-up, and t counts from there.

Use it with optimizer=lars, whose paper trains with power 2 after a warm-up of five epochs.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from ..core.schedule import Horizon, WarmedUp


@dataclass(frozen=True, kw_only=True)
class Polynomial(WarmedUp):
    """end + (1 - end) (1 - t / T)^power"""

    power: Annotated[float, Gt(0)] = 2.0  # 1 is a straight line
    end: Annotated[float, Ge(0), Le(1)] = 0.0  # the factor at T

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        return self.end + (1 - self.end) * (1 - t / total) ** self.power
