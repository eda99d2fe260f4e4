"""The rate falls in a straight line (Goyal et al. 2017, "Accurate, Large Minibatch SGD", has the line that rises, the
warm-up), as torch's LinearLR does:

    lr(t) = lr (1 + (end - 1) t / T)

T is what is left of the run after the warm-up, and t counts from there.

Use it for fine-tuning, and for short runs: the last steps are small, and there is no knob but the last rate.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from ..core.schedule import Horizon, WarmedUp


@dataclass(frozen=True, kw_only=True)
class LinearDecay(WarmedUp):
    """1 + (end - 1) t / T"""

    end: Annotated[float, Ge(0), Le(1)] = 0.0  # the factor at T

    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        return 1 + (self.end - 1) * t / total
