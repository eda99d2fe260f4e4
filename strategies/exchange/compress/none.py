"""No compression: the message is the vector itself.

Cost: n entries of the vector's dtype.
"""

import torch
from torch import Tensor

from .base import Compressor


class Dense(Compressor):
    linear = True
    lossless = True

    def encode(self, x: Tensor) -> Tensor:
        return x

    def decode(self, message: Tensor, n: int, dtype: torch.dtype) -> Tensor:
        return message

    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        return n * dtype.itemsize
