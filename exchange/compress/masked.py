"""Sends no gradient of weights that `adapt=pruned` has taken out, as it is 0 on all workers.

    C(g) = the entries of g where the mask m is 1, one after another

All workers have the same mask, so that no place travels, and C(g) is linear: any collective adds it up. Nothing is
lost: the sum is what it is without this rule, where m is 1 to the bit wherever a collective adds in an order that does
not depend on the place in the vector (that of the virtual cluster's fabric, and any among two workers), and 0
elsewhere.

Cost: the ones of m, in the vector's dtype; before the first round of pruning that is all of it. Four bytes of memory
for each entry of the vector, for the places of ones.

Use it with adapt=pruned, where the network is what a step waits for and few weights are left.

Source: none is needed. It is what Han et al. 2015 (NeurIPS, section 3) prune, not sent.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ...conf.notes import Note
from .base import Slot, Summed, Totalling, Vector, check_length

KEPT = "kept"  # of a slot: [k] of int32, the places of ones
PLACE = 4  # bytes


def places_of(kept: Tensor) -> Tensor:
    """[n] of bool -> [k], rising, in memory for n."""
    found = kept.nonzero().flatten()
    return torch.empty(len(kept), dtype=torch.int32, device=kept.device)[: len(found)].copy_(found)


class Masked(Summed):
    traits = replace(
        Summed.traits,
        lossless=True,
        steady=False,
        of_kept=True,
        of_gradients=True,  # weights are averaged by modes that keep replicas apart, which pruning does not go with
        encode_passes=1.0,  # as long as these took, with 8 in 10 entries kept
        decode_passes=2.0,
    )
    unpredicted = Note(("compress",), "how many weights are kept is known once a round of pruning is over")

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        """Encodes the whole vector, as its reader need not know the mask."""
        return x

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        check_length(message, vector.nbytes)
        return message.view(vector.dtype)

    def total(self, x: Tensor, out: Tensor, slot: Slot) -> Totalling:
        assert out is x, "nothing is left"
        kept = slot.memory.get(KEPT)
        if kept is None:
            yield x
            return
        values = x.index_select(0, kept)
        yield values
        x.zero_().index_add_(0, kept, values)  # each place is there once

    def nbytes(self, vector: Vector) -> int:
        return vector.nbytes

    def varies(self, messages: int | None) -> Note:
        return Note(("compress",), "which stage keeps how many of the weights is known once a round of pruning is over")

    def remembered(self, vector: Vector) -> int:
        return PLACE * vector.n
