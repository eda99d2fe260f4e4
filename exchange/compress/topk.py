"""The k entries of largest magnitude, with their places (Aji, Heafield 2017, "Sparse Communication for Distributed
Gradient Descent", EMNLP; arXiv 1704.05021; with the memory of Stich et al. 2018, "Sparsified SGD with Memory", NeurIPS,
Algorithm 1; arXiv 1809.07599).

    k = ceil(ratio n),      C(x) = x where |x| is among the k largest, 0 elsewhere.

C is no unbiased estimate of x. With error feedback what was left out is added to the next vector: of p = e + x the
message is C(p) and e <- p - C(p), so that what was sent and what is left are what there was, bit for bit. Without it,
entries that are always small are never sent.

Among equal magnitudes the first entries are taken, so that the same vector makes the same message everywhere. ratio = 1
sends everything, places included.

Deviations from the papers: Aji and Heafield drop by one threshold for all layers, estimated from a sample; here each
vector that is sent has exactly k entries of its own.

The k-th magnitude of millions is found among a few: a threshold that is likely to leave somewhat more than k comes from
every 61st entry, and what is at least as large is looked through exactly. Where the sample misled, all are looked
through, so that the result never depends on it.

Cost: k entries of the vector's dtype and k places of four bytes.

Use it for ratios around 0.01 over slow networks: with error feedback it loses least of the sparse ones. Among many
workers the union of their places grows, and sums become dense.
"""

from dataclasses import replace
from math import ceil
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt, Le
from torch import Tensor

from .base import Compressor, CompressorTraits, Slot, Vector, check_length
from .feedback import ErrorFeedback
from .places import note_on_ratio, pair_bytes, pairs, read_pairs

BLOCK = 2**15  # entries that are compared at once: they stay in the cache
STRIDE = 61  # every so many entries one is in the sample


class TopK(Compressor):
    traits = CompressorTraits(encode_passes=7.0)  # as long as these took on one core

    def __init__(self, ratio: Annotated[float, Gt(0), Le(1)] = 0.01, error_feedback: bool = True) -> None:
        """`ratio`: the share of entries that is sent."""
        self.ratio = ratio
        self.feedback = ErrorFeedback() if error_feedback else None
        lossless = ratio == 1
        self.traits = replace(self.traits, lossless=lossless, sparse=ratio < 0.5, entrywise=lossless)

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        return pairs(largest(x, self.count(len(x))), x)

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        check_length(message, self.nbytes(vector))
        return read_pairs(message, vector)

    def notes(self, vector: Vector) -> list[str]:
        return note_on_ratio(self.ratio, vector.n)

    def nbytes(self, vector: Vector) -> int:
        return pair_bytes(self.count(vector.n), vector)

    def count(self, n: int) -> int:
        """k, of n entries."""
        return min(n, ceil(self.ratio * n))


def largest(x: Tensor, k: int) -> Tensor:
    """The places, rising, of the k entries of largest magnitude; of equal ones, the first. A NaN is larger than all."""
    if (likely := candidates(x, k)) is None:
        return largest_of_all(x, k)
    return likely[largest_of_all(x[likely], k)]


def candidates(x: Tensor, k: int) -> Tensor | None:
    """The places, rising, of entries that have the k largest among them, as no other is as large as any of them.

    None where finding them would take longer than it saves, or no threshold was found in a sample that leaves a few
    more than k: if most are equal, or x repeats itself as the sample does.
    """
    n, wanted = len(x), int(1.3 * k / STRIDE + 8 * (k / STRIDE) ** 0.5) + 4  # eight standard deviations more than k
    if n < BLOCK or wanted > n // (8 * STRIDE) or x.is_cuda or x.dtype not in (torch.float32, torch.float64):
        return None
    numbers = x.numpy()
    sample = np.abs(numbers[::STRIDE])
    threshold = np.partition(sample, -wanted)[-wanted]
    room, below = np.empty(BLOCK, numbers.dtype), np.empty(BLOCK, bool)
    found: list[np.ndarray] = []
    count, most = 0, n // 4
    for at in range(0, n, BLOCK):
        block = numbers[at : at + BLOCK]
        np.less(np.abs(block, out=room[: len(block)]), threshold, out=below[: len(block)])  # a NaN is not
        found.append(np.flatnonzero(~below[: len(block)]) + at)
        count += len(found[-1])
        if count > most:
            return None
    return torch.from_numpy(np.concatenate(found)) if count >= k else None


def largest_of_all(x: Tensor, k: int) -> Tensor:
    """Returns the same as `largest`, by going through all of x several times."""
    magnitudes = x.abs()
    if k == len(x):
        return torch.arange(k, device=x.device)
    least = magnitudes.topk(k, sorted=True).values[-1]
    if least.isnan():
        return magnitudes.isnan().nonzero().flatten()[:k]
    above = (magnitudes > least) | magnitudes.isnan()
    level = (magnitudes == least).nonzero().flatten()[: k - int(above.sum())]
    above[level] = True
    return above.nonzero().flatten()
