"""1-bit SGD: a sign for each entry, and two means for each unit (Seide et al. 2014, "1-Bit Stochastic Gradient Descent
and its Application to Data-Parallel Distributed Training of Speech DNNs", Interspeech, section 3.2).

    p = e + x,      C(p) = m+ where p >= 0, m- elsewhere,      e <- p - C(p)

with m+ the mean of those entries of the column that are >= 0, and m- the mean of its others: of all rules with a
threshold at 0 the one of least squared error. A column of the paper's matrices holds the weights into one unit: here
the row of a weight [out, in], a filter of a convolution [out, in, height, width]; a vector or a number is one column.

C is no unbiased estimate of p, but the sum of a column is kept. Without error feedback what is left out is lost.

e is the float that is nearest to p - C(p). Of an entry with p between C(p) / 2 and 2 C(p) that is exact, and sent and
left are what there was, bit for bit; of others the difference of two floats may be none, and is rounded by half of its
last bit at most.

Deviations from the paper: what is summed travels from everyone to everyone; in the paper each worker sums a share of
the columns, quantizes its sum again, and keeps a second remainder. There is no warm-up without quantization. A worker
whose vector and e are all 0 sends means of 0, and so nothing.

Cost: for each column two means of four bytes (eight of float64), and one bit an entry.

Use it for one bit an entry where columns of a layer differ in size: each unit has two means of its own.
"""

import torch
from torch import Tensor

from .base import Compressor, CompressorTraits, Slot, Vector, check_finite
from .feedback import ErrorFeedback
from .packing import joined, joined_bytes, parted, scale_type
from .places import count_of_rows


class OneBit(Compressor):
    traits = CompressorTraits(
        entrywise=False,
        # as long as these took on one core
        encode_passes=10.0,
        decode_passes=5.0,
    )

    def __init__(self, error_feedback: bool = True) -> None:
        self.feedback = ErrorFeedback() if error_feedback else None

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        check_finite(x, slot)
        wide = x.to(scale_type(x.dtype))
        means = torch.cat([means_of(columns) for columns in columns_of(wide, slot.vector)], dim=1)
        return joined(means.view(-1), (x >= 0).view(torch.uint8), 1)

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        counts = [columns for columns, _ in matrices(vector)]
        scales, codes = parted(message, 2 * sum(counts), vector, 1)
        above, below = (means.split(counts) for means in scales.view(2, -1))
        values = scales.new_empty(vector.n)
        pieces = zip(columns_of(values, vector), columns_of(codes, vector), above, below, strict=True)
        for value, code, a, b in pieces:
            torch.lerp(-b[:, None], a[:, None], code.to(scales.dtype), out=value)  # exactly one of both, and fast
        return values.to(vector.dtype)

    def nbytes(self, vector: Vector) -> int:
        return joined_bytes(2 * sum(columns for columns, _ in matrices(vector)), vector, 1)


def matrices(vector: Vector) -> list[tuple[int, int]]:
    """Returns the number of columns, and of entries in each, of each parameter."""
    return [(s[0], torch.Size(s[1:]).numel()) if len(s) > 1 else (1, torch.Size(s).numel()) for s in vector.shapes]


def columns_of(x: Tensor, vector: Vector) -> list[Tensor]:
    """[n] -> of each parameter [columns, entries in each]"""
    return [piece.view(size) for piece, size in zip(x.split(vector.sizes), matrices(vector), strict=True)]


def means_of(columns: Tensor) -> Tensor:
    """[columns, entries] -> [2, columns]: m+ and -m-; 0 of no entries."""
    above, below = columns.clamp(min=0).sum(1), -columns.clamp(max=0).sum(1)
    if columns.dtype != torch.float64 and not bool((above + below).isfinite().all()):  # more than float32 holds
        return means_of(columns.double()).to(columns.dtype)
    positive = count_of_rows(columns >= 0)
    return torch.stack([above / positive.clamp(min=1), below / (columns.shape[1] - positive).clamp(min=1)])
