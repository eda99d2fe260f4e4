"""Every entry rounded to bfloat16: float32's exponent and eight bits of its significand.

A vector that is all-reduced is summed in bfloat16 too, rounded after each addition, as in torch's bf16_compress_hook:
of n workers a sum is off by at most about n 2^-9 of the sum of magnitudes.

Cost: two bytes an entry.
"""

import torch
from torch import Tensor

from .base import Compressor, UnreadableError


class BFloat16(Compressor):
    linear = True

    def encode(self, x: Tensor) -> Tensor:
        return x.to(torch.bfloat16)

    def decode(self, message: Tensor, n: int, dtype: torch.dtype) -> Tensor:
        if message.nbytes != 2 * n:
            raise UnreadableError(f"{message.nbytes} bytes where {2 * n} were expected")
        return message.view(torch.bfloat16).to(dtype)

    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        return 2 * n
