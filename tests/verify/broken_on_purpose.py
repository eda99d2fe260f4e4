"""Strategies, sync modes and models that are not what they say, for tests of `paceline verify`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.comm import Comm
from paceline.strategies import Batch, Transfers, World
from paceline.strategies.core.batch import BeforeBackward
from paceline.strategies.core.loss import Loss
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.tasks.base import DataSpec


class WrongSum(DataParallel):
    """Its backward pass counts the gradient of one layer's weight one per cent too high."""

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        super().prepare(model, loss, comm, before_backward)
        model.get_parameter("hidden2.weight").register_hook(lambda gradient: gradient * 1.01)


class MeanOfMeans(NaiveBSP):
    """Adds up the replicas' gradients and forgets to weigh them."""

    def update(self) -> None:
        for parameter in self.parameters.values():
            assert parameter.grad is not None
            self.comm.all_reduce(parameter.grad).wait()
        self.optimizer.step()

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return Transfers()


class Apart(NaiveBSP):
    """Says that replicas agree, and sums nothing."""

    def update(self) -> None:
        self.optimizer.step()


class Careless(DataParallel):
    """Raises in its first step."""

    def forward_backward(self, batch: Batch) -> Tensor | None:
        raise KeyError("no such thing")


class Noisy(nn.Sequential):
    """Drops out."""

    def __init__(self, spec) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, spec.classes))


class Normed(nn.Sequential):
    """Has batch norm."""

    def __init__(self, spec) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, spec.classes))


class Single(nn.Sequential):
    """Takes float32 alone."""

    def __init__(self, spec) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, spec.classes))

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype is torch.float64:
            raise TypeError("float32 only")
        return super().forward(input)


class Encoders(nn.Module):
    """Right on purpose. Adam's first step makes much of the rounding of its gradients, many of which are nearly 0."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(8, 16), nn.Parameter(torch.randn(8, 16) / 10)
        encoders = (nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(3))
        self.encoders, self.norm = nn.Sequential(*encoders), nn.LayerNorm(16)
        self.leave = nn.Linear(16, spec.outputs)

    def forward(self, images: Tensor) -> Tensor:
        return self.leave(self.norm(self.encoders(self.enter(images.reshape(-1, 8, 8)) + self.place)).mean(1))
