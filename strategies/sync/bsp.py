"""Bulk synchronous parallel training by all-reduce (synchronous data parallelism).

Every replica j computes the mean gradient g_j of its n_j samples; everyone steps with

    g = sum_j (n_j / sum_i n_i) g_j

which is the gradient of the one batch that all of them together hold: K replicas with batch B equal one worker with
batch K B. Replicas start alike (replica 0 broadcasts) and stay bit-identical.

`NaiveBSP` says just that. `BSP` is Algorithm 1 of Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating
Data Parallel Training" (arXiv 2006.15704), and equals it.

Deviations from the paper: gradients are scaled as they enter their bucket, not afterwards, so that uneven batches are
weighted; the reduced bucket *is* the gradient that the optimizer sees, which saves copying it back; the bitmap of used
parameters travels only with `find_unused`.

Cost per step and worker, S bytes of gradient, K replicas: all_reduce 2 (K-1)/K S; with `find_unused` S grows by four
bytes a parameter tensor.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, Work
from ..base import Batch, Cost, Sync, payload
from ..exchange.buckets import Bucket, allocate


class NaiveBSP(Sync):
    """One blocking all-reduce for each parameter after backward."""

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        start_alike(parameters, comm)

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._share = batch.share

    def update(self) -> None:
        if self.comm.size > 1:
            for parameter in self.parameters.values():
                # g = sum_j share_j g_j; a gradient that is not there counts as zero
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.mul_(self._share)
                self.comm.all_reduce(parameter.grad).wait()
        self.optimizer.step()

    def cost(self, parameters: Sequence[Tensor], replicas: int, steps_per_epoch: int | None) -> Cost:
        return Cost(worker={"all_reduce": 2 * (replicas - 1) / replicas * payload(parameters)})


class BSP(Sync):
    """Algorithm 1: buckets are all-reduced in order while backward goes on."""

    def __init__(
        self,
        bucket_mb: Annotated[float, Gt(0)] = 25.0,
        first_bucket_mb: Annotated[float, Gt(0)] = 1.0,
        find_unused: bool = False,
    ) -> None:
        """`find_unused`: walk the graph before backward, so that the bucket of an unused parameter need not wait for
        the end of backward, and leave alone what no replica used (no weight decay, no momentum: as in serial training).
        """
        self.capacity, self.first = int(bucket_mb * 2**20), int(first_bucket_mb * 2**20)
        self.find_unused = find_unused

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        start_alike(parameters, comm)
        self._params = list(parameters.values())
        self._buckets: list[Bucket] = []
        self._armed = False
        if comm.size == 1:
            return
        self._buckets = allocate(self._params, self.capacity, self.first)
        self._bucket_of = {i: bucket for bucket in self._buckets for i in bucket.parameters}
        self._used = torch.zeros(len(self._params), dtype=torch.int32, device=self._params[0].device)
        for i, parameter in enumerate(self._params):
            parameter.register_post_accumulate_grad_hook(lambda _, i=i: self._gradient_is_ready(i))

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._share = batch.share
        self._works: list[Work] = []
        if self._buckets:
            self._used.zero_()
        for bucket in self._buckets:
            bucket.missing = set(bucket.parameters)

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        self._armed = last  # earlier backward passes only accumulate (no_sync)
        if last and self.find_unused and self._buckets:
            reached = leaves(roots)
            for i, parameter in enumerate(self._params):
                if parameter not in reached:
                    self._mark_ready(i)

    def _gradient_is_ready(self, i: int) -> None:
        if self._armed:
            self._mark_ready(i)

    def _mark_ready(self, i: int) -> None:
        bucket, gradient = self._bucket_of[i], self._params[i].grad
        if gradient is None:
            bucket.views[i].zero_()
        else:
            torch.mul(gradient, self._share, out=bucket.views[i])
            self._used[i] = 1
        bucket.missing.discard(i)
        # in order, whatever order they fill in: every worker must launch the same sequence
        while len(self._works) < len(self._buckets) and not self._buckets[len(self._works)].missing:
            self._works.append(self.comm.all_reduce(self._buckets[len(self._works)].flat))

    def update(self) -> None:
        self._armed = False
        if self._buckets:
            for bucket in self._buckets:
                for i in sorted(bucket.missing, reverse=True):
                    self._mark_ready(i)  # backward never reached it, or there was none: an empty batch
            if self.find_unused:
                self._works.append(self.comm.all_reduce(self._used))
            for work in self._works:
                work.wait()
            for bucket in self._buckets:
                for i in bucket.parameters:
                    unused = self.find_unused and not self._used[i]
                    self._params[i].grad = None if unused else bucket.views[i]
        self.optimizer.step()

    def buffers(self) -> list[Tensor]:
        return [bucket.flat for bucket in self._buckets]

    def report(self) -> dict[str, Any]:
        return {"buckets": len(self._buckets)}

    def cost(self, parameters: Sequence[Tensor], replicas: int, steps_per_epoch: int | None) -> Cost:
        entries = 4 * len(parameters) if self.find_unused else 0
        size = payload(parameters)
        return Cost(
            worker={"all_reduce": 2 * (replicas - 1) / replicas * (size + entries)},
            buffers=size if replicas > 1 else 0,
        )


def start_alike(parameters: dict[str, nn.Parameter], comm: Comm) -> None:
    """Replica 0 broadcasts its parameters."""
    with torch.no_grad():
        for parameter in parameters.values():
            comm.broadcast(parameter.detach(), src=0).wait()


def leaves(roots: Sequence[Tensor]) -> set[Tensor]:
    """The leaf tensors that a backward pass from `roots` reaches."""
    found: set[Tensor] = set()
    seen: set[object] = set()
    stack = [root.grad_fn for root in roots if root.grad_fn is not None]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # only AccumulateGrad nodes have one
        if leaf is not None:
            found.add(leaf)
        stack.extend(following for following, _ in node.next_functions if following is not None)
    return found
