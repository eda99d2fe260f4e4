"""One worker, one model, no communication: the serial reference for everything else.

Use it as the reference: what it reaches, others must reach, and what it takes, others must beat.

Equation: w <- w - eta g(w), for plain SGD and the gradient g of the batch.

Source: Robbins and Monro 1951, "A Stochastic Approximation Method" (Annals of Mathematical Statistics).

Cost: nothing is sent.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from ..comm import Comm
from ..compat.optimizers import step
from ..cost.layout import ReplicaLayout
from ..exchange.clip import Clip
from ..exchange.privacy import Privacy
from ..exchange.privacy.dp_sgd import of_samples
from .core.batch import BeforeBackward
from .core.cost import Transfers, World
from .core.loss import Loss
from .core.sync import Sync, SyncTraits
from .whole import Whole


class Single(Whole):
    """Serial mini-batch SGD: w <- step(w, grad of the batch's mean loss)."""

    traits = replace(Whole.traits, max_replicas=1, runs_whole=True)

    def __init__(self, clip: Clip | None = None, privacy: Privacy | None = None) -> None:
        """`clip`: of the gradient; None for none. `privacy`: None for a plain gradient. Raises `ConfigError`."""
        self.clip, self._private = clip, of_samples(privacy)

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        return ReplicaLayout(accumulate, zero=0)

    def own_sync(self) -> Sync:
        return LocalUpdate(self.clip, self._private)

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.begin(model, loss, comm, before_backward)


class LocalUpdate(Sync):
    """The worker steps alone."""

    traits = SyncTraits(may_begin_anew=True)

    def __init__(self, clip: Clip | None = None, privacy: Privacy | None = None) -> None:
        self.clip, self.privacy = clip, privacy

    def update(self) -> None:
        self.clip_gradients()
        step(self.optimizer)

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return Transfers()
