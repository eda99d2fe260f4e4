"""Classes that are wrong in one way each, by the invariant that they break."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from own_classes import LocalAverage, MeanGradient, Midrange, OneWorker, RandomRounding, Signs
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from paceline.comm import Comm
from paceline.exchange.aggregate import CenteredClipping, Mean, ZenoPlusPlus
from paceline.exchange.compress import Compressor, RandomK, Slot, TopK, Vector
from paceline.exchange.compress.feedback import ErrorFeedback
from paceline.strategies import Transfers, World
from paceline.strategies.core.cost import Traffic
from paceline.strategies.core.terms import LOSSLESS, PUSHES, TOGETHER, WHOLE_TENSORS, Need, Term

# -- sync modes


class UnknownTerm(LocalAverage):
    @property
    def lacks(self) -> dict[Term, str]:
        return {Term("sync", "small", "is small", "is large"): ""}


class AddsNoise(LocalAverage):
    def update(self) -> None:
        for parameter in self.parameters.values():
            parameter.data *= 1 + 1e-15
        super().update()


class SaysThatReplicasAgree(LocalAverage):
    traits = replace(LocalAverage.traits, weights_agree=True)


class SumsGradients(MeanGradient):
    scale = 3.0


class WrongScaleOfMean(LocalAverage):
    def mean(self) -> Tensor:
        return super().mean() * self.comm.size / (self.comm.size + 1)


class EvaluatesReplica0(LocalAverage):
    def consensus(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.parameters.items()}


class StatesHalfTheBytes(LocalAverage):
    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return Transfers([replace(each, nbytes=each.nbytes / 2) for each in super().transfers(parameters, world).sent])


class ForgetsItsStep(LocalAverage):
    def __init__(self, period: int = 3) -> None:
        super().__init__(period)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "steps": 0})


class ForgetsItsStepOfFour(ForgetsItsStep):
    """After four steps alone, `finish` would hide the average that it leaves out."""

    def __init__(self, period: int = 4) -> None:
        super().__init__(period)


class ForgetsItsOuterMomentum(LocalAverage):
    """Saves the weights before the round, and not the momentum of the outer steps, which is 0 until the first one."""

    def __init__(self, period: int = 4) -> None:
        super().__init__(period)

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self.before = parameters_to_vector(self.parameters.values()).detach().clone()
        self.momentum = torch.zeros_like(self.before)

    def average(self) -> None:
        self.momentum = 0.9 * self.momentum + super().mean() - self.before
        self.before = self.before + self.momentum
        vector_to_parameters(self.before.clone(), self.parameters.values())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "before": self.before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.before = state["before"]


class ForgetsItsRound(LocalAverage):
    """Counts its exchanges beside its steps. Every other exchange is left out, and the count is not saved."""

    def __init__(self, period: int = 1) -> None:
        super().__init__(period)
        self.exchanges = 0

    def average(self) -> None:
        self.exchanges += 1
        if self.exchanges % 2:
            super().average()


class ReadsAnotherClock(LocalAverage):
    def update(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * (1 + time.perf_counter() % 1)
        super().update()


# -- strategies


class LosesALayer(OneWorker):
    def split(self, model: nn.Module) -> list[nn.Module]:
        return [nn.Sequential(*list(model.children())[:-1])]


class ScalesTheLoss(OneWorker):
    def prepare(self, model: nn.Module, loss: Any, comm: Comm, before_backward: Any) -> None:
        super().prepare(model, lambda outputs, targets: 2 * loss(outputs, targets), comm, before_backward)


class StatesMessagesThatItDoesNotSend(OneWorker):
    def cost(self, parts: Sequence[nn.Module], inputs: Any) -> list[Traffic]:
        return [{"send": 100.0}]

    def cost_along(self, parts: Sequence[nn.Module], inputs: Any) -> dict[str, list[Traffic]]:
        return {"stage": self.cost(parts, inputs)}


class NeedsAnotherSync(OneWorker):
    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(PUSHES, "waits for nobody"),)


# -- compressors


class NeedsATermOfItsOwnGroup(Signs):
    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(WHOLE_TENSORS, ""), Need(LOSSLESS, ""))


class StatesTooFewBytes(Signs):
    def nbytes(self, vector: Vector) -> int:
        return 8 + vector.n // 8

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        return (message[:8].clone().view(torch.float64) * (2.0 * message[8:] - 1)).to(vector.dtype)


class StatesAMeanOfHalf(Signs):
    def mean_nbytes(self, vector: Vector, messages: int | None) -> float:
        return self.nbytes(vector) / 2


class DividesByTheNorm(RandomRounding):
    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        made = super().decode(message, vector)
        return made * (made.norm() / made.norm())


class ChangesTheVector(Signs):
    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        message = super().encode(x, slot)
        x.zero_()
        return message


class DrawsFromTorch(RandomRounding):
    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        return super().encode(x + torch.rand(len(x)).to(x.dtype), slot)


class SaysThatItLosesNothing(Signs):
    traits = replace(Signs.traits, lossless=True)


class SaysThatItIsSparse(Signs):
    traits = replace(Signs.traits, sparse=True)


class SaysThatItIsEntrywise(Signs):
    traits = replace(Signs.traits, entrywise=True)


class OneScaleForEachBlock(Compressor):
    """Rounds each entry to an eighth of the largest magnitude of its block, and says that it is entrywise."""

    def __init__(self, length: int = 256) -> None:
        self.length = length

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        scales = [block.double().abs().max().clamp(min=1e-30) / 8 for block in x.split(self.length)]
        levels = [(block / scale).round() for block, scale in zip(x.double().split(self.length), scales, strict=True)]
        return torch.cat([torch.stack(scales).view(torch.uint8), torch.cat(levels).to(torch.int8).view(torch.uint8)])

    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        scales, levels = message[: -vector.n].clone().view(torch.float64), message[-vector.n :].view(torch.int8)
        return (scales.repeat_interleave(self.length)[: vector.n] * levels).to(vector.dtype)

    def nbytes(self, vector: Vector) -> int:
        return 8 * -(-vector.n // self.length) + vector.n


class RoundsDown(RandomRounding):
    shift = -0.5


class Clips(RandomRounding):
    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        return super().encode(x.clamp(-x.abs().mean(), x.abs().mean()), slot)


class LosesItsFeedback(ErrorFeedback):
    def keep(self, p: Tensor, sent: Tensor, slot: Any) -> None:
        p.zero_()


class KeepsNoError(Signs):
    def __init__(self) -> None:
        self.feedback = LosesItsFeedback()


class AddsRankToASum(RandomK):
    def total(self, x: Tensor, out: Tensor, slot: Slot) -> Any:
        yield from super().total(x, out, slot)
        out += slot.rank


class HoldsMoreThanItStates(Signs):
    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        slot.memory["last"] = x.clone()
        return super().encode(x, slot)


class RemembersInItself(TopK):
    def __init__(self) -> None:
        super().__init__(0.1)
        self.sent = 0

    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        self.sent += 1
        return super().encode(x.roll(self.sent), slot)


class DiesOfABadMessage(Signs):
    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        return (message[:8].clone().view(torch.float64) * (2.0 * message[8:] - 1)).to(vector.dtype)


# -- aggregation rules


class LacksAForeignTerm(Midrange):
    @property
    def lacks(self) -> dict[Term, str]:
        return {TOGETHER: ""}


class ReturnsAView(Midrange):
    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return rows[0]


class TrustsTheFirstHalf(Midrange):
    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return super().aggregate(rows[: len(rows) // 2], weights, f)


class MeanOfRows(Mean):
    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return rows.mean(0)


class LooksAtWholeRows(Midrange):
    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return rows[rows.norm(dim=1).argmin()].clone()


class ClipsFromZero(Midrange):
    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return super().aggregate(rows.clamp(-1, 1), weights, f)


class SumsRows(Midrange):
    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return rows.median(0).values * len(rows)


class WithstandsAll(Midrange):
    def most(self, rows: int) -> int:
        return rows


class IsTheMean(Midrange):
    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return rows.mean(0)


class DividesByF(Midrange):
    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return super().aggregate(rows, weights, 1) / f * f


class RemembersSilently(Midrange):
    last: Tensor | None = None

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        made = super().aggregate(rows, weights, f)
        self.last = made if self.last is None else (made + self.last) / 2
        return self.last.clone()


class SavesNothing(CenteredClipping):
    def state_dict(self) -> dict[str, Any]:
        return {}


class AdmitsAll(ZenoPlusPlus):
    def admitted(self, row: Tensor, replica: int) -> Tensor | None:
        return row


BREAKS: dict[str, dict[str, list[Any]]] = {
    "sync": {
        "terms are known": [UnknownTerm],
        "one replica is serial training": [AddsNoise],
        "replicas agree after every update": [SaysThatReplicasAgree],
        "replicas train as one worker": [SumsGradients],
        "without a gradient weights stay": [WrongScaleOfMean],
        "the consensus is the mean of the weights": [WrongScaleOfMean, EvaluatesReplica0],
        "measured bytes are the stated bytes": [StatesHalfTheBytes],
        "a resumed run equals the straight one": [
            ForgetsItsStep,
            ForgetsItsStepOfFour,
            ForgetsItsOuterMomentum,
            ForgetsItsRound,
        ],
        "a virtual run repeats": [ReadsAnotherClock],
    },
    "strategy": {
        "the two go together": [NeedsAnotherSync],
        "parts hold the model": [LosesALayer],
        "one replica is serial training": [ScalesTheLoss],
        "replicas train as one worker": [ScalesTheLoss],
        "measured bytes are the stated bytes": [StatesMessagesThatItDoesNotSend],
    },
    "compressor": {
        "terms are known": [NeedsATermOfItsOwnGroup],
        "messages have the stated bytes": [StatesTooFewBytes, StatesAMeanOfHalf],
        "decoded vectors are finite and of the same form": [DividesByTheNorm],
        "encoding leaves the vector alone": [ChangesTheVector],
        "a message follows from its slot": [DrawsFromTorch, RemembersInItself],
        "nothing is lost": [SaysThatItLosesNothing],
        "most entries are zero": [SaysThatItIsSparse],
        "entries are treated by themselves": [SaysThatItIsEntrywise, OneScaleForEachBlock],
        "the mean of many messages is the vector": [RoundsDown, Clips],
        "the next message makes up for what was left out": [KeepsNoError, ChangesTheVector],
        "all workers have the same sum": [AddsRankToASum],
        "a slot holds the stated bytes": [HoldsMoreThanItStates],
        "a saved slot is all that it remembers": [RemembersInItself],
        "damaged messages are vectors or unreadable": [DiesOfABadMessage],
    },
    "aggregator": {
        "terms are known": [LacksAForeignTerm],
        "the result is a row of its own": [ReturnsAView],
        "the order of rows does not matter": [TrustsTheFirstHalf],
        "it is the weighted mean": [MeanOfRows],
        "entries are joined by themselves": [LooksAtWholeRows],
        "rows may be measured from any point": [ClipsFromZero],
        "equal rows give that row": [SumsRows],
        "too few rows are refused": [WithstandsAll],
        "byzantine rows do not carry it away": [IsTheMean],
        "a row of nan is left out": [DividesByF],
        "a result does not depend on those before": [RemembersSilently],
        "a saved rule goes on where it was": [SavesNothing],
        "a pushed row stays and nan is left out": [AdmitsAll],
    },
}
