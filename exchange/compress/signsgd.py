"""signSGD with majority vote: one bit an entry, and the sign of their sum (Bernstein et al. 2018, "signSGD: Compressed
Optimisation for Non-Convex Problems", ICML; arXiv 1802.04434, Algorithm 3).

    worker j sends sign(g_j),      all step with sign(sum_j sign(g_j)).

What the optimizer gets is -1, 0 or 1, whatever the size of gradients: the rate is the length of a step in each
coordinate, and must be much smaller than with gradients (0.0005 for digits). It is no unbiased estimate of the
gradient, and there is no error feedback: a vote has no size that a remainder could be measured by; for signs with it
see ef_signsgd.py and onebit.py. For differences of weights a vote is none of any use, and they are refused.

Deviations from the paper: sign(0), which one bit cannot say, is + and - in turn, (-1)^(message + rank), so that an
entry that is 0 everywhere stays where it is on average over two steps, or over two workers. A worker whose vector is
all 0, as after an empty batch, abstains. A tie leaves an entry alone. Under bsp each worker that does not abstain has
one vote; a server weighs votes by samples, as it does gradients.

Cost: one byte and one bit an entry.

Use it where one bit an entry each way is all that a link carries, with a learning rate found anew: steps are of one
size. Its vote withstands some workers that lie.
"""

import torch
from torch import Tensor

from .base import Compressor, CompressorTraits, Slot, UnreadableError, Vector, check_finite, check_length
from .packing import pack, packed_bytes, unpack

VOTES, ABSTAINS = 1, 0  # the first byte


class SignSGD(Compressor):
    traits = CompressorTraits(
        entrywise=False,  # a vector of zeros abstains
        of_gradients=True,
        resizes="makes signs of gradients",
        # as long as these took on one core
        encode_passes=6.0,
        decode_passes=3.0,
    )

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        check_finite(x, slot)
        if not bool(x.any()):
            return torch.zeros(self.nbytes(slot.vector), dtype=torch.uint8, device=x.device)
        positive = x >= 0 if (slot.count + slot.rank) % 2 == 0 else x > 0
        return torch.cat([positive.new_full((1,), VOTES, dtype=torch.uint8), pack(positive.view(torch.uint8), 1)])

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        check_length(message, self.nbytes(vector))
        votes, positive = int(message[0]), unpack(message[1:], vector.n, 1)
        if votes not in (VOTES, ABSTAINS) or (votes == ABSTAINS and bool(positive.any())):
            raise UnreadableError(f"its first byte is {votes}, and must be 1, or 0 before nothing but zeros")
        return positive.to(vector.dtype).mul_(2).sub_(1) if votes else positive.to(vector.dtype)

    def finish(self, total: Tensor, vector: Vector) -> Tensor:
        """Returns the sign of the total, 0 for a tie. Adding up shares of samples may move a tie off 0 by rounding."""
        return torch.where(total.abs() > torch.finfo(total.dtype).eps ** 0.5, total.sign(), 0)

    def nbytes(self, vector: Vector) -> int:
        return 1 + packed_bytes(vector.n, 1)
