"""Inner-product manipulation (Xie, Koyejo and Gupta 2020, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner
Product Manipulation", UAI, section 3; arXiv 1903.03936). Those who lie all send

    x~ = -eps mean(honest rows)

A small eps stays among the honest rows, so that rules which look at distances pass it, and yet turns the sum; a large
one (the scaled negative mean) overpowers the mean at once.

Use it to see what rules that look at distances let pass.
"""

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Gt
from torch import Tensor

from .base import Attack, Seen


class InnerProduct(Attack):
    colludes = True

    def __init__(
        self, workers: int | Sequence[int] = 1, from_step: int = 0, eps: Annotated[float, Gt(0)] = 0.1
    ) -> None:
        """`workers`, `from_step`: see `Attack`. Raises `ConfigError`."""
        super().__init__(workers, from_step)
        self.eps = eps

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        assert seen.honest is not None
        return seen.honest.mean(0) * -self.eps
