"""No compression: the message is the vector itself.

Cost: n entries of the vector's dtype.
"""

import torch
from torch import Tensor

from .base import Compressor, UnreadableError


class Dense(Compressor):
    linear = True
    lossless = True

    def encode(self, x: Tensor) -> Tensor:
        return x

    def decode(self, message: Tensor, n: int, dtype: torch.dtype) -> Tensor:
        if message.nbytes != n * dtype.itemsize:
            raise UnreadableError(f"{message.nbytes} bytes where {n * dtype.itemsize} were expected")
        return message.view(dtype)

    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        return n * dtype.itemsize
