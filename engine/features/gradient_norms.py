"""Measures the norm of the gradient at two batch sizes in the same step: a replica's own, and the mean over all
replicas.

The first is there between backward and the update, the second once replicas have agreed, before it is clipped. Replicas
tell each other the square of the first, by an all-reduce of eight bytes. It is a measurement, as an evaluation is: the
ledger does not count it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...compat import foreach
from ...strategies import Sync
from ...tasks.partition import Partition
from ..callbacks.base import Norms


class GradientNorms:
    """Measures norms on each worker. `last`: of the last step, if they were measured."""

    def __init__(self, sync: Sync, partition: Partition, every: Sequence[int]) -> None:
        """`every`: steps from one measurement to the next. `sync` shows the mean (`shows_mean`)."""
        self._sync, self._partition, self._every = sync, partition, every
        self._own = self._mean = 0.0  # squares
        self._measures = False
        self.last: Norms | None = None

    def after_backward(self, step: int) -> None:
        """`step`: steps made before this one."""
        self._measures = any((step + 1) % every == 0 for every in self._every)
        if self._measures:
            self._own = self._square()

    def gradients(self) -> None:
        if self._measures:
            self._mean = self._square()

    def after_update(self, step: int) -> None:
        """All replicas tell each other."""
        self.last = None
        if not self._measures:
            return
        comm = self._sync.comm
        sizes = [self._partition.size(step, replica) for replica in range(self._partition.replicas)]
        sizes = [size for size in sizes if size > 0]
        total = torch.tensor([self._own], dtype=torch.float64)
        with comm.ledger.aside(), comm.timeline.named("norms"):
            comm.all_reduce(total).wait()
        if len(sizes) > 1:
            harmonic = len(sizes) / sum(1 / size for size in sizes)
            self.last = Norms(float(total) / len(sizes), harmonic, self._mean, sum(sizes))

    def _square(self) -> float:
        """|g|^2 of what the parameters have, in float64 from the norms of tensors."""
        gradients: list[Tensor] = [each.grad for each in self._sync.parameters.values() if each.grad is not None]
        if not gradients:
            return 0.0
        norms = torch.stack([norm.double() for norm in foreach.norm(gradients)])
        return float(norms.square().sum())
