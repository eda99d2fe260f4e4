"""A worker sends one number as each entry: zero, so that it seems to have nothing to say; or what is not finite.

Use it for a worker that has failed: what is not finite ends training with the mean, and nothing else does so at once.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ...conf.errors import ConfigError
from .base import Attack, Seen

NotFinite = Literal["nan", "inf", "-inf"]


class ConstantAttack(Attack):
    def __init__(self, workers: int | Sequence[int] = 1, from_step: int = 0, value: float | NotFinite = 0.0) -> None:
        """`value`: of each entry. Raises `ConfigError`."""
        super().__init__(workers, from_step)
        self.value = float(value)

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        return torch.full_like(own, self.value)


class Infinite(ConstantAttack):
    """NaN, or infinity."""

    def __init__(self, workers: int | Sequence[int] = 1, from_step: int = 0, value: float | NotFinite = "nan") -> None:
        """`value`: of each entry. Raises `ConfigError`."""
        super().__init__(workers, from_step, value)
        if math.isfinite(self.value):
            raise ConfigError(
                f"attack.value={self.value:g}: must be nan, inf or -inf; attack=zero sends a number, which its "
                "attack.value says"
            )
