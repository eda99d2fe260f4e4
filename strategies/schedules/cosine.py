"""Half a cosine (Loshchilov, Hutter 2017, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR; arXiv
1608.03983, equation 5), from the optimizer's rate down to a fraction of it, without restarts:

    lr(t) = lr (end + (1 - end) (1 + cos(pi t / T)) / 2)

T is what is left of the run after the warm-up, and t counts from there: torch's CosineAnnealingLR.

Use it where the length of the run is known beforehand: no knob but the last rate, and it is seldom much worse than a
schedule that was searched for.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from ..core.schedule import Horizon, WarmedUp


@dataclass(frozen=True, kw_only=True)
class Cosine(WarmedUp):
    """end + (1 - end) (1 + cos(pi t / T)) / 2"""

    end: Annotated[float, Ge(0), Le(1)] = 0.0  # the factor at T

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * t / total)) / 2
