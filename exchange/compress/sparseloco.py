"""SparseLoCo: the largest entries of each chunk of a round's difference, in two bits each, with error feedback that
forgets (Sarfi et al. 2025, "Communication Efficient LLM Pre-training with SparseLoCo", arXiv 2508.15706, Algorithm 1).

    e <- beta e + D,      q = Q(TopK(e)),      e <- e - q,      w <- w - alpha mean(q)

where D is how far a replica has gone in the round. The first three are this rule's; the last is the outer step of
sync=diloco, with sync.outer_lr=alpha and sync.outer_momentum=0: the error feedback stands in for outer momentum
(conf/experiment/sparseloco.yaml puts them together). With beta = 0, ratio = 1 and no quantization it is DiLoCo without
outer momentum.

TopK takes of each chunk of `chunk` entries the k = ceil(ratio chunk) of largest magnitude; of equal ones, the first. Q
has two bits an entry: its sign, and which of two magnitudes of its chunk it has: that of the larger ones, the mean of
those above the mean magnitude of the k, or that of the others, their mean. Q keeps the sum of magnitudes; it is no
unbiased estimate, and neither is TopK. quantize=false sends values as they are; then what was sent and what is left are
e, bit for bit. Of a quantized entry what is left is the float that is nearest to e - q.

Deviations from the paper: the table of Q's values is ours. Chunks are runs of the vector of all parameters, not tiles
of each matrix; the last of a vector may be shorter. A difference is weighed by its replica's samples.

Cost: for each entry that is sent 2 bits, or one entry of the vector's dtype, and for its place as many bits as a chunk
needs, 12 for 4096; and with quantization for each chunk two magnitudes of four bytes (eight of float64).

Use it with sync=diloco over the Internet: what travels every hundred steps is of two bits for a few of each hundred
entries.
"""

from dataclasses import replace
from math import ceil
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from .base import Compressor, CompressorTraits, Slot, UnreadableError, Vector, check_finite, check_length, check_read
from .feedback import ErrorFeedback
from .packing import pack, packed_bytes, scale_type, unpack
from .places import bits_of, check_rising, largest_of_rows, note_on_ratio, pack_places, unpack_places


class SparseLoCo(Compressor):
    # as long as these took on one core
    traits = CompressorTraits(encode_passes=40.0, decode_passes=5.0)

    def __init__(
        self,
        ratio: Annotated[float, Gt(0), Le(1)] = 0.03,
        beta: Annotated[float, Ge(0), Lt(1)] = 0.95,
        chunk: Annotated[int, Ge(1), Le(2**16)] = 4096,
        quantize: bool = True,
        error_feedback: bool = True,
    ) -> None:
        """`ratio`: the share of entries that is sent. `chunk`: entries. `quantize`: to two bits."""
        self.ratio, self.chunk, self.quantize = ratio, chunk, quantize
        self.feedback = ErrorFeedback(beta) if error_feedback else None
        lossless = ratio == 1 and not quantize
        self.traits = replace(self.traits, lossless=lossless, sparse=ratio < 0.5, entrywise=lossless)
        self.bits = bits_of(chunk)

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        check_finite(x, slot)
        if self.traits.lossless:
            # error feedback subtracts the message from `x`, so that it needs memory of its own
            return (x if self.feedback is None else x.clone()).view(torch.uint8)
        places = [largest_of_rows(rows, self.count(rows.shape[1])) for rows in self.rows(x)]
        values = [rows.gather(1, at) for rows, at in zip(self.rows(x), places, strict=True)]
        head = pack_places(torch.cat([at.flatten() for at in places]), self.bits) if places else x.new_empty(0)
        if not self.quantize:
            return torch.cat([head.view(torch.uint8), *(value.flatten().view(torch.uint8) for value in values)])
        quantized = [two_bits(value) for value in values]
        scales = [means.flatten().view(torch.uint8) for means, _ in quantized]
        codes = torch.cat([x.new_empty(0, dtype=torch.uint8), *(code.flatten() for _, code in quantized)])
        return torch.cat([*scales, head.view(torch.uint8), pack(codes, 2)])

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        check_length(message, self.nbytes(vector))
        if self.traits.lossless:
            return self.read(message, vector)
        m, head = self.entries(vector.n), self.scale_bytes(vector)
        middle = head + packed_bytes(m, self.bits)
        places = unpack_places(message[head:middle], m, self.bits)
        values = self.values(message[:head], message[middle:], vector, m)
        x, at = values.new_zeros(vector.n), 0
        for rows in self.rows(x):
            count, k = len(rows), self.count(rows.shape[1])
            own = places[at : at + count * k].view(count, k)
            check_rising(own, rows.shape[1])
            rows.scatter_(1, own, values[at : at + count * k].view(count, k))
            at += count * k
        return x

    def values(self, scales: Tensor, codes: Tensor, vector: Vector, m: int) -> Tensor:
        """-> [m]. Raises `UnreadableError`."""
        if not self.quantize:
            return self.read(codes, vector)
        means = scales.clone().view(scale_type(vector.dtype)).view(-1, 2)
        if not bool(((means >= 0) & means.isfinite()).all()):
            raise UnreadableError("one of its magnitudes is NaN, infinite or negative")
        of = [self.count(width) for count, width in self.shapes(vector.n) for _ in range(count)]
        counts = torch.tensor(of, dtype=torch.int64)
        row = torch.repeat_interleave(torch.arange(len(counts)), counts).to(means.device)
        code = unpack(codes, m, 2).long()
        magnitudes = means[row, code >> 1]
        return torch.where((code & 1).bool(), -magnitudes, magnitudes).to(vector.dtype)

    def read(self, values: Tensor, vector: Vector) -> Tensor:
        """Values as they are. Raises `UnreadableError`."""
        values = values.clone().view(vector.dtype)  # a message may begin anywhere in memory; its numbers may not
        check_read(values)
        return values

    def notes(self, vector: Vector) -> list[str]:
        return note_on_ratio(self.ratio, min(self.chunk, vector.n), "chunk")

    def nbytes(self, vector: Vector) -> int:
        if self.traits.lossless:
            return vector.nbytes
        m = self.entries(vector.n)
        sent = packed_bytes(m, 2) if self.quantize else m * vector.dtype.itemsize
        return self.scale_bytes(vector) + packed_bytes(m, self.bits) + sent

    def scale_bytes(self, vector: Vector) -> int:
        chunks = -(-vector.n // self.chunk)
        return 2 * chunks * scale_type(vector.dtype).itemsize if self.quantize else 0

    def count(self, width: int) -> int:
        """k, of a chunk."""
        return min(width, ceil(self.ratio * width))

    def entries(self, n: int) -> int:
        """Returns the number of entries that are sent of n."""
        return sum(count * self.count(width) for count, width in self.shapes(n))

    def shapes(self, n: int) -> list[tuple[int, int]]:
        """Returns (chunks, entries of each): of the whole chunks, and of the shorter one that is left over."""
        whole, rest = divmod(n, self.chunk)
        return [shape for shape in ((whole, self.chunk), (1, rest)) if shape[0] * shape[1]]

    def rows(self, x: Tensor) -> list[Tensor]:
        """[n] -> [count, width] of each of the shapes: views."""
        shapes = self.shapes(len(x))
        return [part.view(shape) for part, shape in zip(x.split([a * b for a, b in shapes]), shapes, strict=True)]


def two_bits(values: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, k] -> magnitudes, [rows, 2], and codes, [rows, k]: 1 for a minus, 2 for the larger magnitude."""
    magnitudes = values.abs().double()
    large = magnitudes > magnitudes.mean(1, keepdim=True)
    means = [(magnitudes * of).sum(1) / of.sum(1).clamp(min=1) for of in (~large, large)]
    codes = (values < 0).view(torch.uint8) + 2 * large.view(torch.uint8)
    return torch.stack(means, dim=1).to(scale_type(values.dtype)), codes
