"""Entries whose magnitude reaches a threshold, with their places (Strom 2015, "Scalable Distributed DNN Training Using
Commodity GPU Cloud Computing", Interspeech; Dutta et al. 2020, "On the Discrepancy between the Theoretical Analysis and
Practical Implementations of Compressed Communication", AAAI; arXiv 1911.08250).

    C(x)_i = x_i where |x_i| >= tau, 0 elsewhere.

Messages vary in length, from nothing to all of x: no cost is stated before a run, and what was sent is in its ledger.
C is no unbiased estimate of x. With error feedback what was left out is added to the next vector: of p = e + x the
message is C(p) and e <- p - C(p), so that what was sent and what is left are what there was, bit for bit. Without it,
entries that are always small are never sent.

A NaN is sent. What tau is of use depends on the size of gradients, and on the shares of the samples that they are
weighed by: with more workers a sum is made of smaller vectors.

Deviations from the papers: Strom sends +tau or -tau in place of an entry, in one bit; here its value travels, as in
Dutta et al.

Cost: for each entry that is sent, one of the vector's dtype and four bytes for its place.

Use it where it is known which magnitudes matter: it takes no selection, and sends much when much changes. Its
messages vary in length, so that no cost can be stated beforehand.
"""

from typing import Annotated

from annotated_types import Gt
from torch import Tensor

from ...conf.notes import Note
from .base import Compressor, CompressorTraits, Slot, Vector
from .feedback import ErrorFeedback
from .places import pair_bytes, pairs, read_pairs


class Threshold(Compressor):
    # as long as these took on one core
    traits = CompressorTraits(sparse=True, steady=False, encode_passes=12.0, decode_passes=3.0)

    def __init__(self, tau: Annotated[float, Gt(0)] = 0.001, error_feedback: bool = True) -> None:
        """`tau`: the least magnitude that is sent."""
        self.tau = tau
        self.feedback = ErrorFeedback() if error_feedback else None

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        return pairs((~(x.abs() < self.tau)).nonzero().flatten(), x)

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        return read_pairs(message, vector)

    def varies(self, messages: int | None) -> Note:
        return Note(
            ("compress",),
            f"only entries that reach compress.tau={self.tau} travel, and how many do depends on what is learnt",
        )

    def nbytes(self, vector: Vector) -> int:
        return pair_bytes(vector.n, vector)
