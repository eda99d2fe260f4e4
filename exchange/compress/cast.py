"""Every entry rounded to two bytes: bfloat16 has float32's exponent and eight bits of its significand, float16 eleven
bits of it and magnitudes from 6e-8 to 65504.

A vector that is all-reduced is summed in two bytes too, rounded after each addition, as in torch's bf16_compress_hook
and fp16_compress_hook: of n workers a sum is off by at most about n 2^-9 (bfloat16) or n 2^-12 (float16) of the sum of
magnitudes. Rounding to nearest is no unbiased estimate: what is always too small for float16 is never sent. With error
feedback (feedback.py) what rounding left out is added to the next vector; sent and left are what there was, bit for
bit, but what the additions of a sum round away is lost.

A sum that has left float16's range is reported, and one of bfloat16 that is no number.

Cost: two bytes an entry.

Use it where half of the bytes is enough and nothing else shall change: the cheapest of all compressors. `bf16` keeps
float32's range, so that it never overflows; `fp16` is finer, for gradients of known size.

Equation: C(x) = x rounded to the nearest number of two bytes, each entry by itself.

Source: Micikevicius et al. 2018, "Mixed Precision Training" (ICLR), for float16; Kalamkar et al. 2019, "A Study of
BFLOAT16 for Deep Learning Training" (arXiv 1905.12322).
"""

import torch
from torch import Tensor

from ...strategies.core.errors import NotFiniteError
from .base import Slot, Summed, Totalling, Vector, all_finite, check_length, check_read
from .feedback import ErrorFeedback


class _WireCast(Summed):
    to: torch.dtype

    def __init__(self, error_feedback: bool = False) -> None:
        self.feedback = ErrorFeedback() if error_feedback else None

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        # error feedback subtracts the message from `x`, so that it needs memory of its own
        return self._checked(x.to(self.to, copy=self.feedback is not None), slot)

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        check_length(message, self.nbytes(vector))
        rounded = message.view(self.to)
        check_read(rounded)
        return rounded.to(vector.dtype)

    def total(self, x: Tensor, out: Tensor, slot: Slot) -> Totalling:
        rounded = x.to(self.to, copy=True)  # it is summed in place
        if out is not x:
            x.sub_(rounded)
        yield rounded
        out.copy_(self._checked(rounded, slot))

    def nbytes(self, vector: Vector) -> int:
        return 2 * vector.n

    def _checked(self, rounded: Tensor, slot: Slot) -> Tensor:
        if not all_finite(rounded):
            raise NotFiniteError(
                f"worker {slot.rank} diverged: a number that it sends or gets is NaN, or beyond the "
                f"{torch.finfo(self.to).max:.5g} that {self.to} holds; a smaller optimizer.lr may help, or "
                "compress=none"
            )
        return rounded


class WireBFloat16(_WireCast):
    to = torch.bfloat16


class WireFloat16(_WireCast):
    to = torch.float16
