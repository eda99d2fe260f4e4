"""k entries at random places that all workers draw alike (Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with Memory",
NeurIPS, section 2, rand_k; arXiv 1809.07599; with a seed that workers share as in Vogels et al. 2019, "PowerSGD",
NeurIPS, appendix G; arXiv 1905.13727).

    C(x)_i = x_i where i is one of k = ceil(ratio n) places, 0 elsewhere,

each set of k places being as likely as any other. As all workers have the same places, C is linear: values alone are
added up on their way, by any collective, and no place travels.

With error feedback C is as above: it is no unbiased estimate of x, and what was left out is added to the next vector,

    p = e + x,      e <- p - C(p),      sent and left are what there was, bit for bit.

Without it C is made longer by n / k: E C(x) = x, and E |C(x) - x|^2 = (n / k - 1) |x|^2. An estimate that noisy needs a
small rate. What is unbiased has no use for error feedback: it may be longer than what there was, which would never be
made up. Nor have gossip and the answers of servers a use for it, which know by themselves what was left out: there
choose error_feedback=true, which makes nothing longer.

ratio = 1 sends the vector as it is. A NaN travels when its place is drawn.

Deviations from the papers: places follow from the run's seed, the key of the vector and the count of messages, and are
drawn by NumPy: all workers must have the same version of it.

Cost: k entries of the vector's dtype. From one worker to another, 8 bytes more, the seed that places are drawn with.

Use it where sums must be made by an all-reduce and few bytes: all workers draw the same places. It takes more steps
than compress=topk at the same ratio.
"""

from dataclasses import replace
from math import ceil
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt, Le
from torch import Tensor

from .base import Slot, Summed, Totalling, UnreadableError, Vector, check_length
from .feedback import ErrorFeedback
from .places import note_on_ratio

SEED = 8  # bytes: int64


class RandomK(Summed):
    # as long as drawing and sorting a tenth took on one core, once for a sum
    traits = replace(Summed.traits, encode_passes=14.0)

    def __init__(self, seed: int = 0, ratio: Annotated[float, Gt(0), Le(1)] = 0.1, error_feedback: bool = True) -> None:
        """`ratio`: the share of entries that is sent. `error_feedback`: False for an unbiased estimate."""
        self.seed, self.ratio = seed, ratio
        self.feedback = ErrorFeedback() if error_feedback else None
        lossless = ratio == 1
        unbiased = lossless or not error_feedback
        self.traits = replace(self.traits, lossless=lossless, unbiased=unbiased, sparse=ratio < 0.5, entrywise=lossless)

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        seed = self.drawn(slot)
        told = torch.tensor([seed], device=x.device)
        values = self.chosen(x, self.places(len(x), seed).to(x.device))
        return torch.cat([told.view(torch.uint8), values.view(torch.uint8)])

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        check_length(message, self.nbytes(vector))
        seed, values = int(message[:SEED].clone().view(torch.int64)), message[SEED:].clone().view(vector.dtype)
        if seed < 0:
            raise UnreadableError("its seed is negative")
        places = self.places(vector.n, seed).to(values.device)
        return values.new_zeros(vector.n).scatter_(0, places, values)

    def total(self, x: Tensor, out: Tensor, slot: Slot) -> Totalling:
        places = self.places(len(x), self.drawn(slot)).to(x.device)
        values = self.chosen(x, places)
        if out is not x:
            x[places] -= values
        yield values
        out.zero_()[places] = values

    def notes(self, vector: Vector) -> list[str]:
        return note_on_ratio(self.ratio, vector.n)

    def nbytes(self, vector: Vector) -> int:
        return SEED + self.count(vector.n) * vector.dtype.itemsize

    def of_total(self, vector: Vector) -> list[int]:
        return [self.count(vector.n) * vector.dtype.itemsize]

    def count(self, n: int) -> int:
        """k, of n entries."""
        return min(n, ceil(self.ratio * n))

    def drawn(self, slot: Slot) -> int:
        return slot.draws(self.seed, common=True).initial_seed()

    def places(self, n: int, seed: int) -> Tensor:
        """[k]"""
        return places_of(n, self.count(n), seed)

    def chosen(self, x: Tensor, places: Tensor) -> Tensor:
        """[n], [k] -> [k]"""
        values = x[places]
        return values if self.feedback is not None else values.mul_(len(x) / max(1, len(places)))


def places_of(n: int, k: int, seed: int) -> Tensor:
    """[k], rising. For k below n / 50 the work is that of k draws."""
    drawn = np.random.Generator(np.random.SFC64(seed)).choice(n, k, replace=False, shuffle=False) if n else []
    return torch.from_numpy(np.sort(np.asarray(drawn, dtype=np.int64)))
