"""Classes of a user's own, each right: a sync mode, a compressor, an aggregation rule and a strategy."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from paceline.comm import Comm
from paceline.exchange.aggregate import Aggregator
from paceline.exchange.aggregate.base import AggregatorTraits
from paceline.exchange.collectives import Fabric
from paceline.exchange.compress import Compressor, Slot, UnreadableError, Vector
from paceline.exchange.compress.base import CompressorTraits
from paceline.exchange.compress.feedback import ErrorFeedback
from paceline.exchange.start_alike import start_alike
from paceline.strategies import Batch, Strategy, Sync, Transfers, World
from paceline.strategies.core.cost import payload, spaced
from paceline.strategies.core.strategy import StrategyTraits
from paceline.strategies.core.sync import SyncTraits


class LocalAverage(Sync):
    """Replicas train alone and average their weights every `period` steps."""

    traits = SyncTraits(weights_agree=False, averages="own")

    def __init__(self, period: int = 2) -> None:
        self.period, self.steps = period, 0

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        start_alike(parameters, comm)

    def mean(self) -> Tensor:
        weights = parameters_to_vector(self.parameters.values()).detach().clone()
        self.comm.all_reduce(weights).wait()
        return weights / self.comm.size

    def average(self) -> None:
        if self.comm.size > 1:
            vector_to_parameters(self.mean(), self.parameters.values())

    def update(self) -> None:
        self.clip_gradients()
        self.optimizer.step()
        self.steps += 1
        if self.steps % self.period == 0:
            self.average()

    def consensus(self) -> dict[str, Tensor]:
        mean = self.mean().split([each.numel() for each in self.parameters.values()])
        pairs = zip(self.parameters.items(), mean, strict=True)
        return {name: piece.view_as(parameter) for (name, parameter), piece in pairs}

    def finish(self) -> None:
        self.average()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.steps = state["steps"]

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return Transfers(spaced(Fabric().transfers(payload(parameters), world), self.period))


class MeanGradient(Sync):
    """All replicas step with the mean gradient of all samples."""

    scale: float = 1.0

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        start_alike(parameters, comm)

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self.share = batch.share

    def update(self) -> None:
        for parameter in self.parameters.values():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = gradient * (self.share * self.scale)
            self.comm.all_reduce(parameter.grad).wait()
        self.clip_gradients()
        self.optimizer.step()

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return Transfers([each for one in parameters for each in Fabric().transfers(payload([one]), world)])


class Signs(Compressor):
    """Sends the mean magnitude of a vector and a sign for each entry, with error feedback."""

    traits = CompressorTraits(entrywise=False)

    def __init__(self, error_feedback: bool = True) -> None:
        self.feedback = ErrorFeedback() if error_feedback else None

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        scale = x.double().abs().mean().view(1)
        return torch.cat([scale.view(torch.uint8), (x >= 0).to(torch.uint8)])

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        if message.nbytes != self.nbytes(vector):
            raise UnreadableError(f"{message.nbytes} bytes where {self.nbytes(vector)} were expected")
        scale, signs = message[:8].clone().view(torch.float64), message[8:]
        if not bool((scale >= 0) & scale.isfinite()) or int(signs.max()) > 1:
            raise UnreadableError("its scale or a sign is none")
        return (scale * (2.0 * signs - 1)).to(vector.dtype)

    def nbytes(self, vector: Vector) -> int:
        return 8 + vector.n


class RandomRounding(Compressor):
    """Rounds each entry at random to one of the two multiples of the largest magnitude / 4 beside it, as an int8."""

    traits = CompressorTraits(entrywise=False, unbiased=True)
    shift: float = 0.0

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        scale = x.double().abs().max().clamp(min=1e-30) / 4
        draws = torch.rand(len(x), generator=slot.draws(self.seed), dtype=torch.float64)
        levels = (x.double() / scale + draws + self.shift).floor().clamp(-5, 5)
        return torch.cat([scale.view(1).view(torch.uint8), levels.to(torch.int8).view(torch.uint8)])

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        if message.nbytes != self.nbytes(vector):
            raise UnreadableError(f"{message.nbytes} bytes where {self.nbytes(vector)} were expected")
        scale = message[:8].clone().view(torch.float64)
        if not bool((scale >= 0) & scale.isfinite()):
            raise UnreadableError("its scale is none")
        return (scale * message[8:].view(torch.int8)).to(vector.dtype)

    def nbytes(self, vector: Vector) -> int:
        return 8 + vector.n


class Midrange(Aggregator):
    """The mean of the second smallest and the second largest value of each entry: one row of n may be Byzantine."""

    traits = AggregatorTraits(robust=True, coordinatewise=True, bound="f <= 1, n > 2 f")

    def most(self, rows: int) -> int:
        return min(1, (rows - 1) // 2)

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        ordered = rows.sort(dim=0).values
        return (ordered[f] + ordered[len(rows) - 1 - f]) / 2


class OneWorker(Strategy):
    """A replica is one worker with the whole model."""

    traits = StrategyTraits(steps_whole=True, runs_whole=True)

    def prepare(self, model: nn.Module, loss: Any, comm: Comm, before_backward: Any) -> None:
        self.module, self.loss, self.before_backward = model, loss, before_backward

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0:
            return None
        loss = self.loss(self.module(batch.inputs), batch.targets)
        self.before_backward([loss], True)
        loss.backward()
        return loss.detach()


RIGHT = {
    "sync": [LocalAverage, MeanGradient],
    "compressor": [Signs, RandomRounding],
    "aggregator": [Midrange],
    "strategy": [OneWorker],
}
