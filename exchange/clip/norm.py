"""A gradient that is longer than `max` is made that long, and keeps its direction (Pascanu, Mikolov, Bengio 2013, "On
the Difficulty of Training Recurrent Neural Networks", ICML; arXiv 1211.5063, Algorithm 1):

    g <- g min(1, max / (||g|| + 1e-6)),      ||g|| = sqrt(sum_p ||g_p||^2) over all parameters p of the model.

It is one number for the whole model, however that is laid out. Where a replica is several workers, each sums the
squares of what no worker before it holds: a pipeline's stages their own layers, tensor workers their pieces, what is
whole on several of them (a norm's scale, a tied weight, a model under strategy=domain) the first. These sums are
all-reduced, in float64, so that all multiply by the same factor. Where replicas share a gradient out (sync.shard,
FSDP), they sum theirs as well. On one worker it is torch.nn.utils.clip_grad_norm_, bit for bit.

Deviations from the paper: 1e-6 keeps the factor finite, as torch has it. A norm that is NaN or infinite ends the run
before a weight is touched, where multiplying by it would spread it to all of them.

Cost per step and worker: among the p workers of a replica all_reduce 2 (p-1)/p 8 bytes, and among K replicas that
share a gradient out 2 (K-1)/K 8 bytes; else nothing. It waits for the whole gradient, and goes through it once, twice
where it is too long.

Use it for transformers and recurrent nets (max 1 is usual), and wherever single batches give gradients many times as
long as others: the loss then jumps, or becomes NaN after a good start.
"""

import math
from collections.abc import Mapping
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor
from torch.nn.utils import get_total_norm

from ...compat import foreach
from ...strategies.core.clip import Clip, Counted, Shared, check_dense
from ...strategies.core.errors import NotFiniteError

EPSILON = 1e-6


class ByNorm(Clip):
    measures = True

    def __init__(self, max: Annotated[float, Gt(0)] = 1.0) -> None:
        """`max`: the longest that a gradient may be."""
        self.max = max

    @torch.no_grad()
    def apply(
        self, gradients: Mapping[str, Tensor], worker: int, counted: Counted | None = None, shared: Shared | None = None
    ) -> None:
        check_dense(gradients, "norm")
        own = [gradient for name, gradient in gradients.items() if counted is None or name in counted.names]
        norm = get_total_norm(own)  # []
        if counted is not None or shared is not None:
            norm = _over_all(norm.double().square(), counted, shared).sqrt()
        self.norm = norm.item()
        if not math.isfinite(self.norm):
            raise NotFiniteError(
                f"worker {worker} diverged: the norm of its gradient is {self.norm}, and no weight was changed by it; "
                "a smaller optimizer.lr may help"
            )
        factor = self.max / (norm + EPSILON)
        if factor < 1:
            foreach.mul_(list(gradients.values()), factor.item())


def _over_all(square: Tensor, counted: Counted | None, shared: Shared | None) -> Tensor:
    """sum ||g_p||^2, of what this worker has counted."""
    if shared is not None:
        shared.among.all_reduce(square).wait()
        square /= shared.copies
    if counted is not None:
        with counted.among.timeline.named("norm"):
            counted.among.all_reduce(square).wait()
    return square
