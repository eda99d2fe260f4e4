"""Oracles of tests: more models, and serial loops in plain torch. The first part is in paceline.testing."""

import math

import torch
from torch import Tensor, nn

from paceline.exchange.privacy.clipping import ROUNDING as SLACK
from paceline.testing.training import (
    CLASSES,
    FEATURES,
    IMAGE,
    ROUNDING,
    TrainingCase,
    TrainingPlan,
    Weights,
    distance,
    identical,
    images64,
    mlp,
    mlp64,
    momentum,
    replica_batch,
    samples,
    serial,
    train,
    weights_of,
    workers_of,
)

__all__ = [
    "CLASSES",
    "FEATURES",
    "IMAGE",
    "ROUNDING",
    "Case",
    "Plan",
    "Weights",
    "distance",
    "identical",
    "images64",
    "mlp",
    "mlp64",
    "momentum",
    "replica_batch",
    "samples",
    "serial",
    "train",
    "weights_of",
    "workers_of",
]

Case = TrainingCase
Plan = TrainingPlan


def deep64() -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(FEATURES, FEATURES) for _ in range(4)], nn.Linear(FEATURES, CLASSES)).double()


class TwoDtypes(nn.Module):
    """A float32 and a float64 half."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(FEATURES, 7)
        self.wide = nn.Linear(7, CLASSES).double()
        self.scale = nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.narrow(x.float()).double()) * self.scale


class Branching(nn.Module):
    """A branch that only samples whose first feature is positive go through; `never` is used by none."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(FEATURES, 8)
        self.branch = nn.Linear(8, 8)
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        taken = x[:, 0] > 0
        if bool(taken.any()):
            h = torch.where(taken[:, None], h + self.branch(h.tanh()), h)
        return self.head(h.tanh())


def branching64() -> nn.Module:
    return Branching().double()


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=0.01)


class Replacing(torch.optim.SGD):
    """Puts another tensor in a gradient's place, and drops it after the step."""

    def step(self, closure=None):
        for each in self.param_groups[0]["params"]:
            each.grad = None if each.grad is None else each.grad - each.grad.mean()
        super().step(closure)
        self.zero_grad()


def replacing(parameters) -> torch.optim.Optimizer:
    return Replacing(parameters, lr=0.1, momentum=0.9)


def clipped_sums(case: Case, model: nn.Module, inputs: Tensor, targets: Tensor, clip: float) -> list[Tensor]:
    """By parameter, the sum of the samples' gradients, each taken by itself and clipped to this length."""
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for i in range(len(targets)):
        gradient = torch.autograd.grad(
            case.loss(model(inputs[i : i + 1]), targets[i : i + 1]), list(model.parameters())
        )
        norm = math.sqrt(sum(float(each.square().sum()) for each in gradient))
        for total, each in zip(sums, gradient, strict=True):
            total += each * min(1.0, clip / (1 + SLACK) / norm)
    return sums


def serial_with_buffers(case: Case, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """As `serial`, with the running statistics, which belong to a model's state."""
    model = case.start()
    optimizer = case.optimizer(model.parameters())
    for step in range(len(case.sizes)):
        inputs, targets = case.step(step)
        optimizer.zero_grad()
        case.loss(model(inputs), targets).backward()
        optimizer.step()
    state = model.state_dict()
    assert state.keys() == like.keys()
    return {name: tensor.double() for name, tensor in state.items()}


class Shifting(nn.Module):
    """Changes its input in place, or does not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.linear = in_place, nn.Linear(FEATURES, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.sub_(0.3) if self.in_place else x - 0.3)


def shifting(in_place: bool) -> nn.Module:
    later = [nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)]
    return nn.Sequential(nn.Flatten(), Shifting(in_place), *later, nn.Tanh(), nn.Linear(6, CLASSES))


def shifted_loss(outputs: Tensor, targets: Tensor, in_place: bool) -> Tensor:
    if in_place and not targets.is_meta:
        targets.add_(1).remainder_(CLASSES)
    return nn.functional.cross_entropy(outputs, targets if in_place else (targets + 1) % CLASSES)


class Halving(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(0.5)


class InPlaceInside(nn.Sequential):
    """Classifies digits; its third layer changes its input in place."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), Halving(), nn.Linear(8, 10))
