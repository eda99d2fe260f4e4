"""The server adds the mean change, or a part of it, with momentum or without (FedAvg: McMahan et al. 2017; FedAvgM:
Hsu, Qi and Brown 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
section 4; arXiv 1909.06335).

    v <- beta v + Delta
    w <- w + eta v

eta = 1 and beta = 0 is FedAvg but for rounding.

Cost: nothing is sent; the server holds v where beta is above 0.

Use momentum where few clients take part in a round, so that their mean change jumps about.
"""

from typing import Annotated

from annotated_types import Ge, Gt, Lt
from torch import Tensor

from ...strategies.core.state import State
from .base import ServerRule


class ServerSGD(ServerRule):
    def __init__(self, lr: Annotated[float, Gt(0)] = 1.0, momentum: Annotated[float, Ge(0), Lt(1)] = 0.0) -> None:
        """`lr`, `momentum`: eta and beta."""
        self.lr, self.momentum = lr, momentum
        self._v: Tensor | None = None

    def step(self, weights: Tensor, way: Tensor) -> None:
        if self.momentum == 0:
            weights.add_(way, alpha=self.lr)
            return
        self._v = way.clone() if self._v is None else self._v.mul_(self.momentum).add_(way)
        weights.add_(self._v, alpha=self.lr)

    def holds(self, size: int) -> int:
        return size if self.momentum > 0 else 0

    def state_dict(self) -> State:
        return {} if self._v is None else {"v": self._v}

    def load_state_dict(self, state: State) -> None:
        self._v = state.get("v")
