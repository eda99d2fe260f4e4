"""QSGD: entries rounded at random to one of s levels of their bucket's norm (Alistarh et al. 2017, "QSGD:
Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS, section 3.1; arXiv 1610.02132).

    Q(x_i) = |x|_2 sgn(x_i) xi_i,      xi_i = l/s or (l+1)/s,

where l/s and (l+1)/s are the levels beside |x_i| / |x|_2, and the upper one is drawn with the probability
s |x_i| / |x|_2 - l. So E Q(x) = x, and E |Q(x) - x|^2 <= min(n/s^2, sqrt(n)/s) |x|^2 for a bucket of n entries.

A vector is cut into buckets of `bucket` entries, the last of which may be shorter: smaller buckets have less variance
and more norms. With `bits` bits an entry s = 2^(bits-1) - 1: 1, 7 and 127 levels for 2, 4 and 8 bits. There is no error
feedback: what is left out has an expectation of 0, and may be longer than what there was, which would never be made up.

Deviations from the paper: levels have all the same number of bits (its Elias coding pays where most are 0, and makes
lengths vary). A norm below 2^-110 counts as 2^-110, so that subnormal entries are rounded like others: Q is unbiased
with any scale that no magnitude exceeds. How near the draws come to these probabilities: see rounding.py. Entries of
bfloat16 are rounded once more when they are decoded, to nearest.

Cost: four bytes a bucket (eight of float64), and `bits` bits an entry.

Use it where messages must be unbiased, without a memory on the workers: 8 bits lose hardly anything, 2 bits want a
smaller learning rate.
"""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from .base import Compressor, CompressorTraits, Slot, UnreadableError, Vector, not_finite
from .packing import joined, joined_bytes, parted, scale_type
from .rounding import generator, levels, norms_of


class QSGD(Compressor):
    traits = CompressorTraits(
        entrywise=False,
        unbiased=True,
        # as long as these took on one core, without native code
        encode_passes=10.0,
        decode_passes=2.0,
    )

    def __init__(self, seed: int = 0, bits: Literal[2, 4, 8] = 8, bucket: Annotated[int, Ge(1)] = 512) -> None:
        """`bits`: an entry. `bucket`: entries that share a norm."""
        self.seed, self.bits, self.bucket = seed, bits, bucket
        self.s = 2 ** (bits - 1) - 1
        self.traits = replace(self.traits, sparse=self.s < bucket**0.5)  # most levels are 0

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        draws, wide = generator(slot.draws(self.seed)), x.to(scale_type(x.dtype))
        head = self.count(len(x)) * wide.itemsize
        message = torch.empty(head + len(x), dtype=torch.uint8, device=x.device)  # as if each code took a byte
        codes, norms, at = message[head:], [], 0
        for buckets in self.buckets(wide):
            norms.append(norms_of(buckets))
            if not bool(norms[-1].isfinite().all()):
                raise not_finite(x, slot)
            levels(buckets, norms[-1], self.s, draws, codes[at : at + buckets.numel()])
            at += buckets.numel()
        if self.bits < 8:
            return joined(torch.cat(norms), codes, self.bits)
        message[:head] = torch.cat(norms).view(torch.uint8)
        return message

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        norms, codes = parted(message, self.count(vector.n), vector, self.bits)
        if len(codes) and int(codes.max()) > 2 * self.s:
            raise UnreadableError(f"one of its levels is above {self.s}")
        x = codes.to(norms.dtype).sub_(self.s)
        at = 0
        for buckets in self.buckets(x):
            buckets.mul_((norms[at : at + len(buckets)] / self.s)[:, None])
            at += len(buckets)
        return x.to(vector.dtype)

    def nbytes(self, vector: Vector) -> int:
        return joined_bytes(self.count(vector.n), vector, self.bits)

    def count(self, n: int) -> int:
        """Buckets of n entries."""
        return -(-n // self.bucket)

    def buckets(self, x: Tensor) -> list[Tensor]:
        """[n] -> the whole ones, [count, bucket], and the rest as one that is shorter: views."""
        whole = len(x) // self.bucket * self.bucket
        rows = [x[:whole].view(-1, self.bucket), x[whole:].view(1, -1)]
        return rows if whole < len(x) else rows[:1]
