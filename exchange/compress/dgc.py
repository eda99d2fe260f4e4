"""Deep gradient compression: top-k of gradients whose momentum is kept by the workers (Lin et al. 2018, "Deep Gradient
Compression: Reducing the Communication Bandwidth for Distributed Training", ICLR; arXiv 1712.01887, Algorithm 4).

    g <- g min(1, c N^(-1/2) / |g|),      u <- m u + g,      v <- v + u,
    C(v) is sent: the k entries of largest magnitude;      v <- v - C(v),      u <- 0 where v was sent.

*Momentum correction*: u is a worker's own momentum, and what is accumulated is u, not g, so that entries that wait go
as far as momentum would have taken them. The optimizer must have no momentum of its own, and is refused if it has.
*Masking* stops the momentum of what has just been sent, which would go on in a direction that is stale;
`masking=false` leaves it. *Local clipping* bounds a worker's gradient before it is accumulated, by N^(-1/2) of the
bound c for the sum of N workers. *Warm-up*: for the first `warmup` messages more is sent, in four stages of
ratio^(1/5), ratio^(2/5), ... (25 %, 6.3 %, 1.6 % and 0.4 % where it is 0.1 % afterwards).

ratio = 1 without masking is SGD with momentum m; with masking it is SGD without momentum, as all of u is masked in
each step. C(v) is no unbiased estimate of v; what was sent and what is left are v, bit for bit. Of equal magnitudes
the first are sent. Where v = 0 is among the largest, u is not masked.

Deviations from the paper: messages are counted, not epochs. The k largest are found exactly, not by a threshold from a
sample. What is clipped is what is handed over: the gradient of a bucket, or of a server's shard, as it enters the sum,
weighed by its share of the samples (servers weigh it when they receive it); N counts servers, too. There is no
Nesterov momentum.

Cost: k entries of the vector's dtype and k places of four bytes. With a warm-up k is larger in the first messages: what
is stated is the mean over those of the run.

Use it for very small ratios (0.001) over slow networks, in long runs: the warm-up and the masking are what keep such
ratios from losing accuracy.
"""

from dataclasses import replace
from math import ceil
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor
from torch.optim import Optimizer

from ...conf.notes import Note
from .base import Compressor, CompressorTraits, Slot, UnreadableError, Vector, check_length
from .feedback import Feedback, Remembered, check_no_momentum
from .places import note_on_ratio, pair_bytes, pairs, read_pairs
from .topk import largest

STAGES = 5  # the last of them is what comes after the warm-up


class DGC(Compressor):
    traits = CompressorTraits(
        of_gradients=True,
        resizes="adds momentum to a gradient",
        entrywise=False,
        encode_passes=7.0,  # as long as these took on one core
    )

    def __init__(
        self,
        ratio: Annotated[float, Gt(0), Le(1)] = 0.01,
        momentum: Annotated[float, Ge(0), Lt(1)] = 0.9,
        clip: Annotated[float, Gt(0)] | None = None,
        masking: bool = True,
        warmup: Annotated[int, Ge(0)] = 0,
    ) -> None:
        """`ratio`: the share of entries that is sent. `momentum`: m. `clip`: c; None for no clipping.

        `warmup`: messages of each vector that more is sent in.
        """
        self.ratio, self.warmup = ratio, warmup
        self.feedback = MomentumCorrection(momentum, clip, masking)
        self.traits = replace(self.traits, steady=warmup == 0, sparse=ratio < 0.5)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        check_no_momentum(optimizer, "the workers' momentum is in what they send, compress.momentum")

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        return pairs(largest(x, share(self.ratio_at(slot.count), len(x))), x)

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        if self.traits.steady:
            check_length(message, self.nbytes(vector))
        elif message.nbytes > self.nbytes(vector):
            raise UnreadableError(f"{message.nbytes} bytes where at most {self.nbytes(vector)} were expected")
        return read_pairs(message, vector)

    def notes(self, vector: Vector) -> list[str]:
        return note_on_ratio(self.ratio, vector.n)

    def nbytes(self, vector: Vector) -> int:
        return pair_bytes(share(self.ratio_at(0), vector.n), vector)

    def mean_nbytes(self, vector: Vector, messages: int | None) -> float:
        later = pair_bytes(share(self.ratio, vector.n), vector)
        if not messages:
            return later
        counts = range(min(messages, self.warmup))
        first = [pair_bytes(share(self.ratio_at(count), vector.n), vector) for count in counts]
        return (sum(first) + (messages - len(first)) * later) / messages

    def varies(self, messages: int | None) -> Note | str:
        if self.warmup == 0 or messages is not None:
            return ""
        return Note(
            ("compress",),
            f"more is sent in the first {self.warmup:,} messages (compress.warmup), and how many steps there are is "
            "known once the data are dealt",
        )

    def ratio_at(self, count: int) -> float:
        """Returns the ratio of the message that follows the first `count`."""
        if count >= self.warmup:
            return self.ratio
        return self.ratio ** ((1 + (STAGES - 1) * count // self.warmup) / STAGES)


class MomentumCorrection(Feedback):
    passes = 11.0  # u <- m u + g, v <- v + u, v <- v - C(v), u <- 0: as long as these took

    def __init__(self, momentum: float, clip: float | None, masking: bool) -> None:
        self.momentum, self.clip, self.masking = momentum, clip, masking
        if clip is not None:
            self.passes += 11.0  # the norm of g, in float64, and g made shorter: as long as these took

    def add(self, x: Tensor, slot: Remembered) -> Tensor:
        for name in ("u", "v"):
            if name not in slot.memory:
                slot.memory[name] = torch.zeros_like(x)
        u, v = slot.memory["u"], slot.memory["v"]
        u.mul_(self.momentum).add_(clipped(x, self.clip, slot.workers))
        return v.add_(u)

    def keep(self, p: Tensor, sent: Tensor, slot: Remembered) -> None:
        p -= sent  # p is v
        if self.masking:
            slot.memory["u"].masked_fill_(sent != 0, 0)

    def held(self, nbytes: int) -> int:
        return 2 * nbytes


def clipped(g: Tensor, clip: float | None, workers: int) -> Tensor:
    """[n] -> [n], no longer than its worker's part of the bound."""
    if clip is None:
        return g
    most, length = clip * workers**-0.5, float(torch.linalg.vector_norm(g, dtype=torch.float64))
    return g * (most / length) if length > most else g


def share(ratio: float, n: int) -> int:
    """k, of n entries."""
    return min(n, ceil(ratio * n))
