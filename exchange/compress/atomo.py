"""Spectral ATOMO: s of a matrix's singular triples, drawn at random and made longer in turn (Wang et al. 2018, "ATOMO:
Communication-efficient Learning via Atomic Sparsification", NeurIPS, Algorithm 1; arXiv 1806.04090).

    M = sum_i lambda_i u_i v_i^T,      C(M) = sum over the i that are drawn of (lambda_i / p_i) u_i v_i^T

where i is drawn with probability p_i, and of all p with sum_i p_i = s these have the least variance:

    p_i = min(1, lambda_i / t),      t such that sum_i p_i = s,

which Algorithm 1 finds from the largest lambda_i on. So E C(M) = M, as far as floating point goes, and
E |C(M) - M|^2 = sum_i lambda_i^2 (1/p_i - 1). Nothing is clipped, and no draw is repeated: both would bias.

Deviations from the paper: triples are drawn together, one u uniform in [0, 1) for a matrix: i is drawn where u + k, for
some whole k, lies between p_1 + ... + p_(i-1) and p_1 + ... + p_i (systematic sampling, Madow 1949). Each i still has
the probability p_i; as the u_i v_i^T are orthogonal, the variance is that of independent draws; and exactly s are drawn
(fewer where the rank is less, filled up with zeros), so that messages are all of one length. There is no error
feedback: what is left out has an expectation of 0, and may be longer than what there was, which would never be made up.

Which parameters are matrices, and which travel whole: see matrices.py. A decomposition of [m, n] takes of the order of
m n min(m, n) operations, which is much more than other rules.

Cost: s (m + n) entries of each matrix, and all of what travels whole.

Use it where unbiased low-rank messages are wanted, and decompositions are cheap beside the network: few large
matrices, slow links.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from .base import Compressor, CompressorTraits, Slot, Vector, check_finite
from .matrices import check_rank, message_bytes, read, shortened, whole
from .packing import scale_type


class Atomo(Compressor):
    traits = CompressorTraits(entrywise=False, unbiased=True)

    def __init__(self, seed: int = 0, triples: Annotated[int, Ge(1)] = 3) -> None:
        """`triples`: s."""
        self.seed, self.triples = seed, triples

    def check_model(self, parts: Sequence[Sequence[Tensor]]) -> None:
        check_rank(parts, "triples", self.triples)

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        check_finite(x, slot)
        places = shortened(slot.vector, self.triples)
        drawn = torch.rand(len(places), generator=slot.draws(self.seed), dtype=torch.float64).tolist()
        factors = [triples(place.of(x), self.triples, u) for place, u in zip(places, drawn, strict=True)]
        lefts, rights = [left.view(-1) for left, _ in factors], [right.view(-1) for _, right in factors]
        return torch.cat([*lefts, *rights, *whole(x, places)]).view(torch.uint8)

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        return read(message, vector, shortened(vector, self.triples), self.triples)

    def nbytes(self, vector: Vector) -> int:
        return message_bytes(vector, shortened(vector, self.triples), self.triples)

    def encoding(self, vector: Vector) -> float:
        return super().encoding(vector) + sum(by_svd(place.m, place.n) for place in shortened(vector, self.triples))


def by_svd(m: int, n: int) -> float:
    """Bytes of memory that a worker goes through in the time of a decomposition: 0.5 ns for each m n min(m, n)."""
    return 5.0 * m * n * min(m, n)


def triples(matrix: Tensor, s: int, u: float) -> tuple[Tensor, Tensor]:
    """[m, n] -> [m, s], lambda_i / p_i u_i, and [n, s], v_i, of the triples that are drawn."""
    (m, n), wide = matrix.shape, matrix.to(scale_type(matrix.dtype))
    left, lengths, right = torch.linalg.svd(wide, full_matrices=False)
    p = probabilities(lengths, s)
    kept = systematic(p, s, u).to(matrix.device)
    lefts, rights = wide.new_zeros(m, s), wide.new_zeros(n, s)
    lefts[:, : len(kept)] = left[:, kept] * (lengths[kept] / p.to(lengths)[kept])
    rights[:, : len(kept)] = right[kept].T
    return lefts.to(matrix.dtype), rights.to(matrix.dtype)


def probabilities(lengths: Tensor, s: int) -> Tensor:
    """[r], falling -> [r] of float64 on the CPU; their sum is s, or the number of those above 0 where that is less.

    Algorithm 1: a length with s lambda_i above the sum of it and those after it is kept, and s is one less for these.
    """
    of = lengths.double().cpu()
    after = of.flip(0).cumsum(0).flip(0).tolist()  # from i on
    p = (of > 0).double()
    for i, length in enumerate(of.tolist()):
        left = s - i
        if left * length <= after[i]:
            p[i:] = left * of[i:] / after[i] if after[i] > 0 else 0
            break
    return p


def systematic(p: Tensor, s: int, u: float) -> Tensor:
    """[r], of sum s at most -> the places that are drawn, rising: i with the probability p_i."""
    points = torch.ceil(p.cumsum(0).clamp(max=s) - u)  # the whole k >= 0 with u + k below p_1 + ... + p_i
    return (points.diff(prepend=points.new_zeros(1)) > 0).nonzero().flatten()
