"""Dry runs, on noise, of the computation for a message or a rule, so that its operators can be traced.

Each function makes its data first and returns the call that is to be traced.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from ..cost.predicted import NotPredicted
from .aggregation import Aggregation
from .compress import Compressor, Summed
from .compress.base import Slot, Vector

LARGEST = 2**30  # bytes of made-up gradients


def of_message(compress: Compressor, vector: Vector, workers: int) -> Callable[[], None]:
    """Returns a call that makes one message, and reads those of all workers."""
    x, slot = _noise(vector, 1)[0], Slot("predicted", vector, 0, workers)

    @torch.no_grad()
    def make_and_read() -> None:
        p = x if compress.feedback is None else compress.feedback.add(x, slot)
        if isinstance(compress, Summed):
            for _ in compress.total(p.clone(), torch.empty_like(p), slot):
                pass
            return
        message = compress.encode(p, slot)
        own = compress.decode(message, vector)
        if compress.feedback is not None:
            compress.feedback.keep(p, own, slot)
        x.copy_(own)
        for _ in range(workers - 1):
            x.add_(compress.decode(message, vector))

    return make_and_read


def of_rule(aggregation: Aggregation, vector: Vector, workers: int) -> Callable[[], None]:
    """Returns a call that forges a row, if any worker does, and makes of the rows of all what the rule does."""
    aggregation, rows = (
        copy.deepcopy(aggregation),
        _noise(vector, workers),
    )  # a rule may remember what it is given
    step, last = aggregation.attack.from_step, workers - 1

    @torch.no_grad()
    def forge_and_join() -> None:
        for liar in sorted(aggregation.attack.byzantine(workers))[:1]:  # the slowest replica is one that lies
            aggregation.sent(rows[liar], liar, workers, step)
        if aggregation.streaming:
            rows[last].copy_(rows[0]).mul_(0.5)
        else:
            alike = dict.fromkeys(range(workers), 1.0)
            rows[last].copy_(aggregation.join_in_place(rows, range(workers), alike, workers, step))

    return forge_and_join


def _noise(vector: Vector, gradients: int) -> Tensor:
    """[gradients, n]. Raises `NotPredicted` for more of them than a plan may hold."""
    if (size := gradients * vector.nbytes) > LARGEST:
        raise NotPredicted(
            f"compress, aggregate or attack: their operators are traced on {gradients} gradients, "
            f"{size / 2**30:.1f} GiB here, and at most {LARGEST / 2**30:g} GiB are made for that"
        )
    with torch.random.fork_rng(devices=[]):
        drawn = torch.Generator().manual_seed(0)
        return torch.randn(gradients, vector.n, generator=drawn).to(vector.dtype)
