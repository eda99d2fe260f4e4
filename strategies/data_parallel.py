"""Each worker holds the whole model and takes its own samples; the sync mode decides how the copies agree."""

from torch import Tensor, nn

from ..comm import Comm
from .base import Batch, BeforeBackward, Loss, Strategy


class DataParallel(Strategy):
    """A replica is one worker."""

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.module, self._loss, self._before_backward = model, loss, before_backward

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0:
            return None
        loss = self._loss(self.module(batch.inputs), batch.targets)
        self._before_backward([loss], True)
        loss.backward()
        return loss.detach()
