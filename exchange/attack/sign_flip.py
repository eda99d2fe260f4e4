"""A worker sends the opposite of what it should, `scale` times as long (Li et al. 2019, "RSA: Byzantine-Robust
Stochastic Aggregation Methods for Distributed Learning from Heterogeneous Datasets", AAAI; arXiv 1811.03761):

    x~ = -scale x

Use it first: it is what a fault in a sign does.
"""

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Gt
from torch import Tensor

from .base import Attack, Seen


class SignFlip(Attack):
    def __init__(
        self, workers: int | Sequence[int] = 1, from_step: int = 0, scale: Annotated[float, Gt(0)] = 1.0
    ) -> None:
        """`workers`, `from_step`: see `Attack`. Raises `ConfigError`."""
        super().__init__(workers, from_step)
        self.scale = scale

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        return own * -self.scale
