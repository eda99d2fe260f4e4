"""EF-signSGD: signs times the mean magnitude, with error feedback (Karimireddy et al. 2019, "Error Feedback Fixes
SignSGD and other Gradient Compression Schemes", ICML; arXiv 1901.09847, Algorithm 1).

    p = e + x,      C(p) = |p|_1 / d sign(p),      e <- p - C(p)

for each parameter of d entries by itself, as in the paper's experiments. C is no unbiased estimate of p; it is a
contraction: |C(p) - p|^2 = (1 - |p|_1^2 / (d |p|_2^2)) |p|_2^2. Without error feedback what is left out is lost, and
training may go nowhere, as the paper shows.

e is the float that is nearest to p - C(p). Of an entry with p between C(p) / 2 and 2 C(p) that is exact, and sent and
left are what there was, bit for bit; of others the difference of two floats may be none, and is rounded by half of its
last bit at most.

Deviations from the paper: the rate is the optimizer's, which steps with the sum of what is decoded; in the paper it is
inside p. sign(0) is 1; error feedback takes that back with the next message. Zeros alone make a message of zeros.

Cost: for each parameter a scale of four bytes (eight of float64), and one bit an entry.

Use it for one bit an entry at a usual learning rate: the error feedback makes good what compress=signsgd loses.
"""

import torch
from torch import Tensor

from .base import Compressor, CompressorTraits, Slot, Vector, check_finite
from .feedback import ErrorFeedback
from .packing import joined, joined_bytes, parted, scale_type


class EFSignSGD(Compressor):
    traits = CompressorTraits(
        entrywise=False,
        # as long as these took on one core
        encode_passes=5.0,
        decode_passes=3.0,
    )

    def __init__(self, error_feedback: bool = True) -> None:
        self.feedback = ErrorFeedback() if error_feedback else None

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        check_finite(x, slot)
        wide = x.to(scale_type(x.dtype))
        means = torch.stack([mean_magnitude(piece) for piece in wide.split(slot.vector.sizes)])
        return joined(means, (x >= 0).view(torch.uint8), 1)

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        scales, positive = parted(message, len(vector.shapes), vector, 1)
        signs = positive.to(scales.dtype).mul_(2).sub_(1)
        for piece, scale in zip(vector.pieces(signs), scales, strict=True):
            piece.mul_(scale)
        return signs.to(vector.dtype)

    def nbytes(self, vector: Vector) -> int:
        return joined_bytes(len(vector.shapes), vector, 1)


def mean_magnitude(p: Tensor) -> Tensor:
    """[d] -> |p|_1 / d; 0 of no entries."""
    total = p.abs().sum()
    exact = total if total.isfinite() else p.abs().sum(dtype=torch.float64)  # more than float32 holds
    return (exact / max(1, len(p))).to(p.dtype)
