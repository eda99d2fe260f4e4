"""What tests of compressors share: a round trip, and error feedback in plain torch."""

import torch
from torch import Tensor

from paceline.strategies.exchange.compress import Compressor, Slot, Vector


def flat_vector(x: Tensor) -> Vector:
    """One parameter."""
    return Vector((tuple(x.shape),), x.dtype)


def slot_of(x: Tensor, vector: Vector | None = None, rank: int = 0, workers: int = 1, count: int = 0) -> Slot:
    slot = Slot("x", vector or flat_vector(x), rank, workers)
    slot.count = count
    return slot


def round_trip(compress: Compressor, x: Tensor, slot: Slot | None = None) -> Tensor:
    """[n] -> [n], decoded from the bytes that travel, of the stated length."""
    slot = slot or slot_of(x)
    message = compress.encode(x, slot)
    assert message.nbytes == compress.nbytes(slot.vector)
    return compress.decode(message.contiguous().view(torch.uint8), slot.vector)


class Nobody:
    """The worker of a group of one, as far as a channel asks it."""

    rank, size, name = 0, 1, "nobody"

    def touch(self, nbytes: float) -> None: ...
