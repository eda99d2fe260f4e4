"""A worker sends noise: in place of its row, or on top of it (Blanchard et al. 2017, section 6; Li et al. 2019).

x~ = std z        or, where it is added, x~ = x + std z        z ~ N(0, I)

Use it for a worker that is broken rather than hostile.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from ..seeded import generator
from .base import Attack, Seen


class Noise(Attack):
    def __init__(
        self,
        workers: int | Sequence[int] = 1,
        from_step: int = 0,
        std: Annotated[float, Gt(0)] = 1.0,
        added: bool = True,
        seed: int = 0,
    ) -> None:
        """`std`: of each entry. `added`: to the row that it should send. Raises `ConfigError`."""
        super().__init__(workers, from_step)
        self.std, self.added, self.seed = std, added, seed

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        draws = generator(self.seed, seen.step, seen.replica)
        noise = torch.randn(own.shape, generator=draws, dtype=own.dtype).to(own.device) * self.std
        return own + noise if self.added else noise
