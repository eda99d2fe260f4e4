"""One worker, one model, no communication: the serial reference for everything else.

Use it as the reference: what it reaches, others must reach, and what it takes, others must beat.

Equation: w <- w - eta g(w), for plain SGD and the gradient g of the batch.

Source: Robbins and Monro 1951, "A Stochastic Approximation Method" (Annals of Mathematical Statistics).

Cost: nothing is sent.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ..batches import call
from ..comm import Comm
from .base import Batch, BeforeBackward, Cost, Loss, Strategy, Sync, World
from .exchange.clip import Clip


class Single(Strategy):
    """Serial mini-batch SGD: w <- step(w, grad of the batch's mean loss)."""

    max_replicas = 1
    runs_whole = True

    def __init__(self, clip: Clip | None = None) -> None:
        """`clip`: of the gradient; None for none."""
        self.clip = clip

    def own_sync(self) -> Sync:
        return LocalUpdate(self.clip)

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.module, self._loss, self._before_backward = model, loss, before_backward

    def forward_backward(self, batch: Batch) -> Tensor:
        loss = self._loss(call(self.module, batch.inputs), batch.targets)
        self._before_backward([loss], True)
        loss.backward()
        return loss.detach()


class LocalUpdate(Sync):
    """The worker steps alone."""

    may_begin_anew = True

    def __init__(self, clip: Clip | None = None) -> None:
        self.clip = clip

    def update(self) -> None:
        self.clip_gradients()
        self.optimizer.step()

    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        return Cost()
