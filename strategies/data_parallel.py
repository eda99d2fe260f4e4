"""Each worker holds the whole model and takes its own samples; the sync mode decides how the copies agree.

With `batch_norm=all` batch norm is over the batches of all replicas, as torch's SyncBatchNorm has it, and each replica
counts by its samples (domains/norms.py). Along the axis of the K replicas that sends, for each batch norm of c
channels, all_gather (K-1) (2 c + 1) numbers in forward, and all_reduce 2 (K-1)/K of 2 c numbers in backward.

Use it for every model that fits on one device with its gradients and its optimizer's state: nothing else sends as
little for each sample.

Equation: a replica's batch of n_j samples has the gradient g_j, and the batch of all replicas sum_j n_j g_j / sum_j
n_j.

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB).

Cost within a replica: nothing. What replicas send is said by the sync mode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn

from ..batches import Samples, call, of_each
from ..comm import Comm
from ..exchange.collectives import Fabric
from .core.batch import Batch, BeforeBackward
from .core.cost import Traffic
from .core.loss import Loss
from .domains.norms import over_replicas
from .domains.replicas import ALL, Across, across_of, batch_norms, check_norms
from .domains.swap import swapped
from .whole import Whole


class DataParallel(Whole):
    """A replica is one worker."""

    traits = replace(Whole.traits, runs_whole=True)
    _across: Across | None = None

    def __init__(self, batch_norm: Literal["replica", "all"] = "replica") -> None:
        """`batch_norm`: over the batch of a replica, or over those of all."""
        joined = batch_norm == "all"
        self.traits = replace(self.traits, across_replicas=ALL if joined else "", waits_in_passes=joined)

    def resolved(self, model: nn.Module, inputs: Samples, targets: Samples, loss: Loss) -> dict[str, Any]:
        if self.traits.across_replicas:
            check_norms(self.split(model), [inputs])
        return super().resolved(model, inputs, targets, loss)

    def split(self, model: nn.Module) -> list[nn.Module]:
        if not self.traits.across_replicas:
            return [model]
        return [swapped(model, over_replicas(batch_norms(model), Across.of(Fabric())))]

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        [module] = self.split(model)
        self.begin(module, loss, comm, before_backward)
        self._across = across_of(self.module)
        if self._across is not None and self.setting.across is not None:
            self._across.join(self.setting.across)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0 and self._across is not None and self._across.has_others:
            self._across.stand_in(self.module, of_each(batch.inputs, lambda x: x.new_zeros(1, *x.shape[1:])))
        return super().forward_backward(batch)

    def cost(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        """Counted in a rehearsal of a pass."""
        [part] = parts
        across = across_of(part)
        if across is None or not self.setting.worlds:
            return [{}]
        across.estimate(self.setting.worlds[0])
        call(part, inputs).sum().backward()
        part.zero_grad()
        return [across.group.traffic()]

    def cost_along(self, parts: Sequence[nn.Module], inputs: Samples) -> Mapping[str, list[Traffic]]:
        return {"replica": self.cost(parts, inputs)} if self.traits.across_replicas else {}
