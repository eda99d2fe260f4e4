"""No compression: the message is the vector itself.

Cost: n entries of the vector's dtype.

Use it wherever the network is not what a step waits for: each compressor takes time, and nearly all lose something.

Equation: C(x) = x.

Source: none is needed; it is what all others are compared with.
"""

from dataclasses import replace

from torch import Tensor

from .base import Slot, Summed, Totalling, Vector, check_length


class Dense(Summed):
    traits = replace(Summed.traits, plain=True, lossless=True)

    def encoding(self, vector: Vector) -> float:
        return 0.0

    def decoding(self, vector: Vector) -> float:
        return 0.0

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        return x

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        check_length(message, vector.nbytes)
        return message.view(vector.dtype)

    def total(self, x: Tensor, out: Tensor, slot: Slot) -> Totalling:
        assert out is x, "nothing is left"
        yield x

    def nbytes(self, vector: Vector) -> int:
        return vector.nbytes
