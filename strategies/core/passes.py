"""The forward and the backward pass of a replica that is one worker."""

from torch import Tensor, nn

from ...batches import call
from .batch import Batch, BeforeBackward
from .loss import Loss


class Passes:
    """Computes passes by autograd. A run may have another class compute the same."""

    def forward_backward(self, module: nn.Module, loss: Loss, batch: Batch, before_backward: BeforeBackward) -> Tensor:
        """Accumulates the gradient of the batch's mean loss, and returns that loss, detached.

        `before_backward` is called in between; see `Strategy.prepare`.
        """
        value = loss(call(module, batch.inputs), batch.targets)
        before_backward([value], True)
        value.backward()
        return value.detach()
