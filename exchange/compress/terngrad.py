"""TernGrad: entries rounded at random to -1, 0 or 1 times the largest magnitude of their parameter (Wen et al. 2017,
"TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NeurIPS; arXiv 1705.07878).

    g~ = s_t sign(g) b,      s_t = max |g|,      P(b_i = 1) = |g_i| / s_t

for each parameter by itself ("layer-wise ternarizing"). So E g~ = g, and E |g~ - g|^2 = sum |g_i| (s_t - |g_i|).

*Clipping* (section 4), with `clip`: before that, each g_i is brought to at most c sigma in magnitude, with sigma the
standard deviation of the parameter's entries: smaller steps and less variance for some bias. The paper has c = 2.5.
There is no error feedback: without clipping what is left out has an expectation of 0, and may be longer than what there
was, which would never be made up.

Deviations from the paper: each worker has its own s_t; in the paper all take the largest ("scaler sharing"), so that
the sum of n workers needs log2(2n + 1) bits. Workers get all messages here, not a sum. How near the draws come to these
probabilities: see rounding.py. s_t below 2^-110 counts as 2^-110.

Cost: for each parameter a scale of four bytes (eight of float64), and two bits an entry.

Use it for two bits an entry, unbiased and without a memory on the workers; gradients with few very large entries make
it noisy.
"""

from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from .base import Compressor, CompressorTraits, Slot, UnreadableError, Vector, check_finite
from .packing import joined, joined_bytes, parted, scale_type
from .rounding import LEAST, generator, levels

BITS = 2


class TernGrad(Compressor):
    traits = CompressorTraits(
        entrywise=False,
        unbiased=True,
        sparse=True,
        # as long as these took on one core, without native code
        encode_passes=13.0,
        decode_passes=3.0,
    )

    def __init__(self, seed: int = 0, clip: Annotated[float, Gt(0)] | None = None) -> None:
        """`clip`: c; None for no clipping."""
        self.seed, self.clip = seed, clip
        self.traits = replace(self.traits, unbiased=clip is None)

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        check_finite(x, slot)
        draws, scales, sizes = generator(slot.draws(self.seed)), [], slot.vector.sizes
        codes = torch.empty(len(x), dtype=torch.uint8, device=x.device)
        for piece, code in zip(x.to(scale_type(x.dtype)).split(sizes), codes.split(sizes), strict=True):
            g = piece if self.clip is None else clipped(piece, self.clip)
            scale = torch.maximum(g.max(), -g.min()).clamp(min=LEAST) if len(g) else g.new_zeros(())
            scales.append(scale)
            levels(g.view(1, -1), scale.view(1), 1, draws, code)
        return joined(torch.stack(scales), codes, BITS)

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        scales, codes = parted(message, len(vector.shapes), vector, BITS)
        if len(codes) and int(codes.max()) > 2:
            raise UnreadableError("one of its levels is above 1")
        x = codes.to(scales.dtype).sub_(1)
        for piece, scale in zip(x.split(vector.sizes), scales, strict=True):
            piece.mul_(scale)
        return x.to(vector.dtype)

    def nbytes(self, vector: Vector) -> int:
        return joined_bytes(len(vector.shapes), vector, BITS)


def clipped(g: Tensor, c: float) -> Tensor:
    """[n]: each entry at most c sigma in magnitude."""
    if not len(g):
        return g
    most = c * g.std(correction=0)
    return torch.clamp(g, -most, most)
