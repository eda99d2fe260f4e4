"""A worker sends one number as each entry: zero, so that it seems to have nothing to say; or what is not finite.

Use it for a worker that has failed: what is not finite ends training with the mean, and nothing else does so at once.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .base import Attack, Seen

NotFinite = Literal["nan", "inf", "-inf"]


class Constant(Attack):
    def __init__(self, workers: int | Sequence[int] = 1, from_step: int = 0, value: float | NotFinite = 0.0) -> None:
        """`value`: of each entry. Raises `LayoutError`."""
        super().__init__(workers, from_step)
        self.value = float(value)

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        return torch.full_like(own, self.value)
