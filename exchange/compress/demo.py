"""DeMo: the fast part of each worker's momentum, as the largest coefficients of its cosine transform, and a step by
sign (Peng, Quesnelle, Kingma 2024, "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870, Algorithm 1).

    d <- beta d + g,      q = the k largest coefficients of the DCT of each chunk of d,      d <- d - IDCT(q),
    all step with sign(sum_j IDCT(q_j)).

What is sent is taken out of d, and d is never averaged: momenta are decoupled. The optimizer must have no momentum of
its own, and is refused if it has; as the step is -1, 0 or 1 in each entry, the rate must be much smaller than with
gradients. What travels is no unbiased estimate of anything. All coefficients and beta = 0 is sign SGD, up to the
rounding of the transform, which also decides about entries whose gradient is 0.

A chunk of a matrix [m, n] is a tile [a, b], where a is the largest divisor of m that is no more than `chunk`, and b
that of n; its transform is D_a X D_b^T, with the orthonormal DCT-II

    D_s[i, j] = sqrt((1 if i = 0 else 2) / s) cos(pi (2 j + 1) i / (2 s)),      D_s D_s^T = 1.

A vector has chunks of one row; a filter [out, in, height, width] is the matrix [out, in height width].

Deviations from the paper: the rate is the optimizer's and not in d, which changes nothing in a sign while the rate
stays the same. Sums of decoded coefficients are made after the inverse transform. Of equal magnitudes the first travel.
A gradient is weighed by its share of the samples. Other optimizers than SGD see signs as gradients.

Cost: for each coefficient one of the vector's dtype, and as many bits for its place as a tile of chunk^2 needs, 12 for
64.

Use it where links are slow and momentum may stay on the workers: the momentum's largest coefficients travel, and
nobody sends a dense vector.
"""

from functools import cache
from math import pi
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor
from torch.optim import Optimizer

from .base import Compressor, CompressorTraits, Slot, Vector, check_finite, check_length, check_read
from .feedback import ErrorFeedback, check_no_momentum
from .packing import packed_bytes, scale_type
from .places import bits_of, check_rising, largest_of_rows, pack_places, unpack_places


class Tiles(NamedTuple):
    """Tiles of a matrix [down a, across b]: `down` times `across` tiles [a, b]."""

    down: int
    a: int
    across: int
    b: int


class DeMo(Compressor):
    # as long as these took on one core
    traits = CompressorTraits(
        of_gradients=True, resizes="makes signs of momenta", entrywise=False, encode_passes=29.0, decode_passes=11.0
    )

    def __init__(
        self,
        k: Annotated[int, Ge(1)] = 32,
        beta: Annotated[float, Ge(0), Lt(1)] = 0.999,
        chunk: Annotated[int, Ge(1), Le(256)] = 64,
    ) -> None:
        """`k`: coefficients of a tile that are sent. `chunk`: the most rows, and columns, of a tile."""
        self.k, self.chunk = k, chunk
        self.feedback = ErrorFeedback(beta)
        self.bits = bits_of(chunk * chunk)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        check_no_momentum(optimizer, "the workers' momentum is in what they send, compress.beta")

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        check_finite(x, slot)
        places, values = [torch.empty(0, dtype=torch.int64, device=x.device)], [x.new_empty(0)]
        for piece, tiles in self.tiled(x, slot.vector):
            coefficients = transformed(piece, tiles)
            at = largest_of_rows(coefficients, self.count(tiles))
            places.append(at.flatten())
            values.append(coefficients.gather(1, at).flatten().to(x.dtype))
        sent = torch.cat(values)
        check_finite(sent, slot)  # a coefficient may be larger than the numbers that it is of
        return torch.cat([pack_places(torch.cat(places), self.bits), sent.view(torch.uint8)])

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        check_length(message, self.nbytes(vector))
        m = self.entries(vector)
        head = packed_bytes(m, self.bits)
        places, values = unpack_places(message[:head], m, self.bits), message[head:].clone().view(vector.dtype)
        check_read(values)
        wide = values.to(scale_type(vector.dtype))
        x, at = wide.new_empty(vector.n), 0
        for piece, tiles in self.tiled(x, vector):
            count, k = tiles.down * tiles.across, self.count(tiles)
            own = places[at : at + count * k].view(count, k)
            check_rising(own, tiles.a * tiles.b)
            coefficients = wide.new_zeros(count, tiles.a * tiles.b)
            coefficients.scatter_(1, own, wide[at : at + count * k].view(count, k))
            restore(coefficients, tiles, piece)
            at += count * k
        return x.to(vector.dtype)

    def finish(self, total: Tensor, vector: Vector) -> Tensor:
        return total.sign_()

    def nbytes(self, vector: Vector) -> int:
        m = self.entries(vector)
        return packed_bytes(m, self.bits) + m * vector.dtype.itemsize

    def count(self, tiles: Tiles) -> int:
        """Coefficients of a tile that are sent."""
        return min(self.k, tiles.a * tiles.b)

    def entries(self, vector: Vector) -> int:
        """Coefficients of a message."""
        every = [tiles_of(shape, self.chunk) for shape in vector.shapes if torch.Size(shape).numel()]
        return sum(tiles.down * tiles.across * self.count(tiles) for tiles in every)

    def tiled(self, x: Tensor, vector: Vector) -> list[tuple[Tensor, Tiles]]:
        """[n] -> the parameters that have entries, as views, and their tiles."""
        return [(piece, tiles_of(tuple(piece.shape), self.chunk)) for piece in vector.pieces(x) if piece.numel()]


def tiles_of(shape: tuple[int, ...], chunk: int) -> Tiles:
    m = shape[0] if len(shape) > 1 else 1
    n = torch.Size(shape).numel() // m
    a, b = divisor(m, chunk), divisor(n, chunk)
    return Tiles(m // a, a, n // b, b)


def divisor(n: int, most: int) -> int:
    """The largest of n that is no more than `most`."""
    return next(s for s in range(min(n, most), 0, -1) if n % s == 0)


def transformed(x: Tensor, tiles: Tiles) -> Tensor:
    """A parameter -> [tiles, a b], its coefficients."""
    wide = x.to(scale_type(x.dtype))
    rows = wide.reshape(tiles.down, tiles.a, tiles.across, tiles.b).transpose(1, 2)
    made = dct(tiles.a, wide.dtype, wide.device) @ rows @ dct(tiles.b, wide.dtype, wide.device).T
    return made.reshape(-1, tiles.a * tiles.b)


def restore(coefficients: Tensor, tiles: Tiles, out: Tensor) -> None:
    """[tiles, a b] -> the entries of the parameter `out`, which is dense."""
    rows = coefficients.view(tiles.down, tiles.across, tiles.a, tiles.b)
    to = coefficients.dtype, coefficients.device
    made = dct(tiles.a, *to).T @ rows @ dct(tiles.b, *to)
    out.view(tiles.down, tiles.a, tiles.across, tiles.b).copy_(made.transpose(1, 2))


@cache
def dct(s: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """D_s, [s, s]."""
    i, j = torch.arange(s, dtype=torch.float64)[:, None], torch.arange(s, dtype=torch.float64)
    matrix = torch.cos(pi * (2 * j + 1) * i / (2 * s)) * (2 / s) ** 0.5
    matrix[0] /= 2**0.5
    return matrix.to(device=device, dtype=dtype)
