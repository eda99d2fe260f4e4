"""Sync modes whose consensus is the mean of the replicas' weights. It is no algorithm."""

from abc import abstractmethod

from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...exchange.buckets import views_of
from ..core.sync import Sync


class MeanOfReplicas(Sync):
    """A sync mode that evaluates the mean of the replicas' weights, and ends with it."""

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._is_over = False

    @abstractmethod
    def mean(self) -> Tensor:
        """Returns the mean, [n] in the order of the parameters. All of several replicas call it."""

    def consensus(self) -> dict[str, Tensor]:
        if self._is_over or self.comm.size == 1:
            return super().consensus()
        return dict(zip(self.parameters, views_of(self.mean(), list(self.parameters.values())), strict=True))

    def finish(self) -> None:
        for name, mean in self.consensus().items():
            self.parameters[name].detach().copy_(mean)
        self._is_over = True
