"""Splits a vector for rules of low rank: into matrices [out, rest], and parameters that stay whole.

A parameter of two or more dimensions is a matrix: of a convolution [out, in, height, width] it is [out, in height
width]. It is made shorter where its factors of rank r are shorter, r (m + n) < m n; other parameters travel whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ...conf.errors import ConfigError
from .base import Vector, check_length, check_read


@dataclass(frozen=True)
class MatrixSlice:
    """A matrix [m, n] that begins at entry `begin` of a vector."""

    begin: int
    m: int
    n: int

    @property
    def entries(self) -> int:
        return self.m * self.n

    def of(self, x: Tensor) -> Tensor:
        """[n] -> [m, n], a view"""
        return x[self.begin : self.begin + self.entries].view(self.m, self.n)


def matrices(vector: Vector) -> list[MatrixSlice]:
    begins = accumulate(vector.sizes, initial=0)
    return [
        MatrixSlice(begin, shape[0], torch.Size(shape[1:]).numel())
        for begin, shape in zip(begins, vector.shapes, strict=False)
        if len(shape) > 1
    ]


def shortened(vector: Vector, rank: int) -> list[MatrixSlice]:
    """The matrices whose factors are shorter than they are."""
    return [place for place in matrices(vector) if rank * (place.m + place.n) < place.entries]


def whole(x: Tensor, places: list[MatrixSlice]) -> list[Tensor]:
    """[n] -> what lies between the matrices: views."""
    ends = [0, *(place.begin + place.entries for place in places)]
    begins = [*(place.begin for place in places), len(x)]
    return [x[end:begin] for end, begin in zip(ends, begins, strict=True)]


def whole_entries(vector: Vector, places: list[MatrixSlice]) -> int:
    return vector.n - sum(place.entries for place in places)


def product(lefts: list[Tensor], rights: list[Tensor], rest: Tensor, x: Tensor, places: list[MatrixSlice]) -> Tensor:
    """Writes left right^T of each matrix, and `rest`, into the vector x, [n]. Returns x.

    Args:
        lefts: [m, r] of each matrix.
        rights: [n, r] of each matrix.
        rest: [entries] of the parameters that travel whole.
        x: The vector that is overwritten.
        places: The matrices in x.
    """
    for place, left, right in zip(places, lefts, rights, strict=True):
        torch.mm(left, right.T, out=place.of(x))
    pieces = whole(x, places)
    for piece, sent in zip(pieces, rest.split([len(piece) for piece in pieces]), strict=True):
        piece.copy_(sent)
    return x


def cut(flat: Tensor, sizes: list[tuple[int, int]]) -> list[Tensor]:
    """Matrices of these sizes, one after another, and what follows them: views."""
    entries = [rows * columns for rows, columns in sizes]
    *pieces, rest = flat.split([*entries, len(flat) - sum(entries)])
    return [*(piece.view(size) for piece, size in zip(pieces, sizes, strict=True)), rest]


def message_bytes(vector: Vector, places: list[MatrixSlice], rank: int) -> int:
    factors = sum(rank * (place.m + place.n) for place in places)
    return (factors + whole_entries(vector, places)) * vector.dtype.itemsize


def read(message: Tensor, vector: Vector, places: list[MatrixSlice], rank: int) -> Tensor:
    """Lefts, rights and the rest, one after another -> [n]. Raises `UnreadableError`."""
    check_length(message, message_bytes(vector, places, rank))
    flat = message.clone().view(vector.dtype)  # a message may begin anywhere in memory; its numbers may not
    check_read(flat)
    sizes = [(place.m, rank) for place in places] + [(place.n, rank) for place in places]
    *factors, rest = cut(flat, sizes)
    return product(factors[: len(places)], factors[len(places) :], rest, flat.new_empty(vector.n), places)


def check_rank(parts: Sequence[Sequence[Tensor]], knob: str, rank: int) -> None:
    """Refuse a rank above that of every matrix, which would shorten nothing. Raises `ConfigError`.

    A matrix whose sides are shorter than the rank travels whole, beside one whose sides are not.
    """
    found = [place for part in parts for place in matrices(Vector(tuple(x.shape for x in part), torch.float32))]
    most = max(found, key=lambda place: min(place.m, place.n), default=None)
    if most is not None and 0 < min(most.m, most.n) < rank:
        raise ConfigError(
            f"compress.{knob}={rank}: must be at most {min(most.m, most.n)}, the rank that the matrix "
            f"[{most.m}, {most.n}] can have and no other exceeds; what is above that shortens nothing"
        )
