"""Messages of compressors without workers: a round trip, and a sum that workers make together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..exchange.compress import Compressor, Slot, Summed, Vector


def flat_vector(x: Tensor) -> Vector:
    """Returns the vector of one parameter."""
    return Vector((tuple(x.shape),), x.dtype)


def slot_of(x: Tensor, vector: Vector | None = None, rank: int = 0, workers: int = 1, count: int = 0) -> Slot:
    slot = Slot("x", vector or flat_vector(x), rank, workers)
    slot.count = count
    return slot


def round_trip(compress: Compressor, x: Tensor, slot: Slot | None = None) -> Tensor:
    """[n] -> [n], decoded from the message, which must have the stated length."""
    slot = slot or slot_of(x)
    message = compress.encode(x, slot)
    assert message.nbytes == compress.nbytes(slot.vector)
    return compress.decode(message.contiguous().view(torch.uint8), slot.vector)


def totalled(compress: Summed, rows: Sequence[Tensor], slots: Sequence[Slot]) -> list[tuple[Tensor, Tensor]]:
    """Returns for each worker the sum, made in the order of ranks, and what is left of its row."""
    lefts = [row.clone() for row in rows]
    outs = lefts if compress.feedback is None else [torch.full_like(row, float("nan")) for row in rows]
    rules = [compress.total(left, out, slot) for left, out, slot in zip(lefts, outs, slots, strict=True)]
    for size in compress.of_total(slots[0].vector):
        sums = [next(rule) for rule in rules]
        assert {each.nbytes for each in sums} == {size}
        for each in sums[1:]:
            sums[0] += each
        for each in sums[1:]:
            each.copy_(sums[0])
    for rule, slot in zip(rules, slots, strict=True):
        assert next(rule, None) is None
        slot.count += 1
    return list(zip(outs, lefts, strict=True))


class LoneWorker:
    """The worker of a group of one, as a channel sees it."""

    rank, size, name = 0, 1, "lone worker"

    def touch(self, nbytes: float) -> None: ...

    def all_reduce(self, tensor: Tensor) -> "LoneWorker":
        return self

    def wait(self) -> None: ...
