"""PowerSGD: two factors of each matrix by one step of subspace iteration (Vogels, Karimireddy, Jaggi 2019, "PowerSGD:
Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS, Algorithm 1; arXiv 1905.13727).

    P <- sum_j M_j Q,      P^ <- orthonormal basis of P's columns,      Q <- sum_j M_j^T P^,      sum_j M_j ~ P^ Q^T

with M_j = e + x of worker j, [m, n], and Q, [n, r], of the step before ("warm start"): the steps of the iteration are
spread over training. Both sums are made by a collective, as everything is linear in M: to compress the sum is to sum
what is compressed. A sum of rank r or less is kept exactly, as far as floating point goes. It is no unbiased estimate;
e <- M_j - P^ (M_j^T P^)^T is added to the next vector (Algorithm 2).

With a server, or a neighbour, there are no sums: a worker sends P^ and Q of its own M, and has a Q of its own.

Which parameters are matrices, and which travel whole: see matrices.py. The basis is that of a QR decomposition (the
paper has Gram-Schmidt). e is the float nearest to the difference, so that sent and left are what there was but for half
of its last bit.

Deviations from the paper: Q's columns are brought to length 1 before they are used again, which changes no subspace; a
column that M has no use for (shorter than eps^(3/4) of the longest) is drawn anew, alike on all workers, so that a
gradient of rank r is kept exactly after one of lower rank, too. The optimizer has the momentum, and gets the sum; in
Algorithm 2 momentum is added to what is decoded, which is the same for SGD.

Cost of a sum: r m entries of each matrix and all of what travels whole, and then r n entries of each matrix. A message
from one to one has both.

Use it for models of large matrices under sync=bsp: factors are summed by an all-reduce, as dense gradients are, and a
rank of 1 to 4 costs little accuracy.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from .base import Slot, Summed, Totalling, Vector, all_finite, check_finite, not_finite
from .feedback import ErrorFeedback
from .matrices import MatrixSlice, check_rank, cut, message_bytes, product, read, shortened, whole, whole_entries
from .packing import scale_type


class PowerSGD(Summed):
    traits = replace(
        Summed.traits,
        entrywise=False,
        # M is looked through, and multiplied twice; the product is written
        encode_passes=3.0,
        decode_passes=1.0,
    )

    def __init__(self, seed: int = 0, rank: Annotated[int, Ge(1)] = 4, error_feedback: bool = True) -> None:
        """`rank`: r."""
        self.seed, self.rank = seed, rank
        self.feedback = ErrorFeedback() if error_feedback else None

    @property
    def keeps(self) -> bool:
        return True  # Q

    def check_model(self, parts: Sequence[Sequence[Tensor]]) -> None:
        check_rank(parts, "rank", self.rank)

    def total(self, x: Tensor, out: Tensor, slot: Slot) -> Totalling:
        places = shortened(slot.vector, self.rank)
        qs = self.starts(x, slot, places)
        first = torch.cat(
            [*(times(place.of(x), q).view(-1) for place, q in zip(places, qs, strict=True)), *whole(x, places)]
        )
        if not all_finite(first):  # what is no number in M is none in M Q either, which is shorter
            raise not_finite(first if all_finite(x) else x, slot)
        yield first  # P <- sum_j M_j Q, and what travels whole
        *ps, rest = cut(first, [(place.m, self.rank) for place in places])
        bases = [orthonormal(p) for p in ps]
        second = products(x, bases, places)
        if out is not x:
            take_out(x, bases, self.columns(second, places), places)
        if places:
            yield second  # Q <- sum_j M_j^T P^
        slot.memory["q"] = second
        product(bases, self.columns(second, places), rest, out, places)

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        check_finite(x, slot)
        places = shortened(slot.vector, self.rank)
        starts = self.starts(x, slot, places)
        bases = [orthonormal(times(place.of(x), q)) for place, q in zip(places, starts, strict=True)]
        slot.memory["q"] = products(x, bases, places)
        return torch.cat([*(basis.reshape(-1) for basis in bases), slot.memory["q"], *whole(x, places)])

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        return read(message, vector, shortened(vector, self.rank), self.rank)

    def nbytes(self, vector: Vector) -> int:
        return message_bytes(vector, shortened(vector, self.rank), self.rank)

    def of_total(self, vector: Vector) -> list[int]:
        places = shortened(vector, self.rank)
        first = sum(self.rank * place.m for place in places) + whole_entries(vector, places)
        second = sum(self.rank * place.n for place in places)
        return [entries * vector.dtype.itemsize for entries in ([first, second] if places else [first])]

    def remembered(self, vector: Vector) -> int:
        return sum(self.rank * place.n for place in shortened(vector, self.rank)) * vector.dtype.itemsize

    def columns(self, flat: Tensor, places: list[MatrixSlice]) -> list[Tensor]:
        """-> [n, r] of each matrix"""
        return cut(flat, [(place.n, self.rank) for place in places])[:-1]

    def starts(self, x: Tensor, slot: Slot, places: list[MatrixSlice]) -> list[Tensor]:
        """The Q, [n, r], of each matrix to begin with."""
        draws = slot.draws(self.seed, common=True)
        if (last := slot.memory.get("q")) is None:
            last = x.new_zeros(sum(self.rank * place.n for place in places))
        return [renewed(q, draws) for q in self.columns(last, places)]


def times(matrix: Tensor, q: Tensor) -> Tensor:
    """[m, n] and [n, r] -> [m, r]. Copies q by columns, with which MKL takes a third of the time."""
    return torch.mm(matrix, q.T.contiguous().T)


def products(x: Tensor, bases: list[Tensor], places: list[MatrixSlice]) -> Tensor:
    """M^T P^ of each matrix, one after another; as (P^^T M)^T, which reads rows of M."""
    made = (
        torch.mm(basis.T.contiguous(), place.of(x)).T.reshape(-1) for place, basis in zip(places, bases, strict=True)
    )
    return torch.cat([x.new_empty(0), *made])


def take_out(x: Tensor, lefts: list[Tensor], rights: list[Tensor], places: list[MatrixSlice]) -> None:
    """x <- x - left right^T of each matrix, and nothing is left of what travels whole."""
    for place, left, right in zip(places, lefts, rights, strict=True):
        place.of(x).addmm_(left, right.T, alpha=-1)
    for piece in whole(x, places):
        piece.zero_()


def orthonormal(p: Tensor) -> Tensor:
    """[m, r] -> [m, r]: its columns, or others where these depend on each other."""
    return torch.linalg.qr(p.to(scale_type(p.dtype))).Q.to(p.dtype)


def renewed(q: Tensor, draws: torch.Generator) -> Tensor:
    """[n, r] -> [n, r]: columns of length 1, drawn where there are none."""
    most = q.abs().max()
    scaled = torch.where(most > 0, q / most, 0)  # squares of what is tiny would be 0
    lengths = torch.linalg.vector_norm(scaled, dim=0)
    idle = lengths <= torch.finfo(q.dtype).eps ** 0.75 * lengths.max()
    if bool(idle.any()):
        drawn = torch.randn(q.shape, generator=draws, dtype=torch.float64).to(q)
        scaled[:, idle] = drawn[:, idle]
        lengths = torch.linalg.vector_norm(scaled, dim=0)
    return scaled / lengths
