"""Every entry rounded to bfloat16: float32's exponent and eight bits of its significand.

A vector that is all-reduced is summed in bfloat16 too, rounded after each addition, as in torch's bf16_compress_hook:
of n workers a sum is off by at most about n 2^-9 of the sum of magnitudes.

Cost: two bytes an entry.
"""

import torch
from torch import Tensor

from .base import Slot, Summed, Totalling, Vector, check_length


class BFloat16(Summed):
    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        return x.to(torch.bfloat16)

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        check_length(message, self.nbytes(vector))
        return message.view(torch.bfloat16).to(vector.dtype)

    def total(self, x: Tensor, slot: Slot) -> Totalling:
        rounded = x.to(torch.bfloat16)
        yield rounded
        return rounded.to(x.dtype), None

    def nbytes(self, vector: Vector) -> int:
        return 2 * vector.n
