"""Numbers as integers modulo 2^64, in which sums lose nothing and masks hide everything.

    q = round(clip(x, -largest, largest) 2^bits)  mod 2^64

times the whole number that x counts for; -1 is 2^64 - 1. A sum is read back as a signed number, and is exact as long as
the true one stays within 2^63: `check` says for which weights it does.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...strategies.core.errors import NotFiniteError

Ring = NDArray[np.uint64]
WIDTH = 8  # bytes


@dataclass(frozen=True)
class FixedPoint:
    """`bits` behind the point; no entry is larger than `largest`."""

    bits: int = 24
    largest: float = 16.0

    def encode(self, x: Tensor, weight: int) -> Ring:
        """[d] -> [d], of weight x. Raises `NotFiniteError`: masked, no one could see what spoils the sum."""
        if not x.isfinite().all():
            raise NotFiniteError("what this client is to mask is NaN or infinite")
        scaled = (x.detach().cpu().double().clamp(-self.largest, self.largest) * 2**self.bits).round()
        return scaled.to(torch.int64).numpy().view(np.uint64) * np.uint64(weight)

    def decode(self, total: Ring, weight: int) -> Tensor:
        """[d], a sum -> [d] float64, over the weights of all."""
        return torch.from_numpy(total.view(np.int64).astype(np.float64) / (2.0**self.bits * weight))

    def rounding(self, d: int) -> float:
        """Returns the most length that rounding adds to a vector of d entries."""
        return 0.5 * d**0.5 / 2**self.bits

    def lost(self, x: Tensor) -> tuple[int, int]:
        """[d] -> of its entries those that are not 0, and of these the ones that `encode` cuts, or rounds to 0."""
        large = x.detach().abs().double()
        cut = (large > self.largest) | ((large * 2**self.bits).round() == 0)
        told = large > 0
        return int(told.sum()), int((cut & told).sum())

    def most(self) -> int:
        """The weights of all together, at most."""
        return (2**63 - 1) // math.ceil(self.largest * 2**self.bits)
