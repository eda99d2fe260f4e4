"""Optimizers as people write them, tried on pieces of tensors and on some of their parameters."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.conf.errors import ConfigError
from paceline.exchange.elementwise import check_elementwise, check_uncoupled, check_unknowing


def parameters() -> list[nn.Parameter]:
    with torch.device("meta"):
        return [*nn.Linear(64, 128).parameters(), *nn.Conv2d(3, 4, 3, bias=False).parameters()]


class Scaled(Optimizer):
    """Steps by a function of the gradient. `lr` None: the class has a rate of its own."""

    def __init__(self, params: Any, lr: float | None = 0.1, **more: Any) -> None:
        super().__init__(params, {"lr": lr, **more})

    def scaled(self, gradient: Tensor) -> Tensor:
        return gradient / gradient.norm()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.sub_(self.scaled(each.grad) * (0.1 if group["lr"] is None else group["lr"]))


class InBlocks(Scaled):
    """Rounds the gradients of large tensors in blocks, as optimizers of 8 bits do."""

    def scaled(self, gradient: Tensor) -> Tensor:
        if gradient.numel() < 4096 or gradient.numel() % 256:
            return gradient
        blocks = gradient.view(-1, 256)
        size = blocks.abs().amax(1, keepdim=True) / 127
        return ((blocks / size).round() * size).view_as(gradient)


class CentralisedKernels(Scaled):
    """Takes the mean from the gradient of a convolution alone."""

    def scaled(self, gradient: Tensor) -> Tensor:
        return gradient - gradient.mean((1, 2, 3), keepdim=True) if gradient.dim() > 3 else gradient


class Limited(Scaled):
    """Limits the norm of a gradient, as few gradients need."""

    def scaled(self, gradient: Tensor) -> Tensor:
        return gradient / (gradient.norm() / 100).clamp(min=1.0)


class Reading(Scaled):
    """Wants a closure for parameters of groups that say so."""

    def step(self, closure: Any = None) -> Any:
        if any(group.get("reads") for group in self.param_groups):
            closure()
        super().step()


class Prodigy(Optimizer):
    """Finds its rate d, which begins at 1e-6, from all gradients together (Mishchenko and Defazio 2023)."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1.0, "d": 1e-6, "numerator": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        every = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        first, denominator = self.param_groups[0], 0.0
        weight = first["d"] ** 2 / 1e-6
        for each in every:
            its = self.state[each]
            if not its:
                its |= {"start": each.clone(), "sum": torch.zeros_like(each)}
            its["sum"].add_(each.grad, alpha=weight)
            first["numerator"] += weight * float((each.grad * (its["start"] - each)).sum())
            denominator += float(its["sum"].abs().sum())
        first["d"] = max(first["d"], first["numerator"] / denominator)
        for each in every:
            each.sub_(each.grad.sign(), alpha=3 * first["d"])  # as Adam's first steps are, of its usual averages


def by_shape(*shapes: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"params": [each for each in parameters() if each.shape == shape]} for shape in shapes]


class Skipping(torch.optim.SGD):
    """Leaves out a step with long gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        every = [each.grad.norm() for group in self.param_groups for each in group["params"] if each.grad is not None]
        if torch.stack(every).norm() < 500:
            super().step()


class Marked(Scaled):
    """Steps by the factor that its constructor puts at each parameter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        for each in self.param_groups[0]["params"]:
            vars(each)["factor"] = torch.ones(1)

    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            each.factor.add_(1)
            each.grad.mul_(each.factor)
        super().step()


WHOLE = {
    "attributes": lambda: Marked(parameters()),
    "lr=None": lambda: Scaled(parameters(), lr=None),
    "an empty group first": lambda: Scaled(by_shape((9,), (128, 64))),
    "a group without a trial first": lambda: Reading([{"params": parameters()[:1], "reads": True}, *by_shape((128,))]),
    "large tensors": lambda: InBlocks(parameters()),
    "kernels": lambda: CentralisedKernels(parameters()),
    "long gradients": lambda: Limited(parameters()),
    "left out": lambda: Skipping(parameters()),
    "tiny steps": lambda: Prodigy(parameters()),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_trial_finds_an_optimizer_that_looks_at_whole_tensors(name):
    with pytest.raises(ConfigError, match="is not element-wise"):
        check_elementwise(WHOLE[name](), "strategy=tensor", "strategy=data_parallel")


def test_attributes_that_an_optimizer_wants_are_those_of_its_parameters() -> None:
    optimizer = Marked([nn.Parameter(torch.ones(2, 2))])
    with pytest.raises(ConfigError, match=r"Marked looks at attributes of parameters \(factor\)"):
        check_unknowing(optimizer, "sync.shard=optimizer", "sync.shard=none")
    check_uncoupled(optimizer, "sync.servers=2", "sync.servers=1")
    assert float(vars(optimizer.param_groups[0]["params"][0])["factor"]) == 1


@pytest.mark.parametrize("kind", [Prodigy, Skipping])
def test_a_trial_finds_parameters_that_tiny_or_missing_steps_couple(kind):
    with pytest.raises(ConfigError, match=f"{kind.__name__} couples them"):
        check_uncoupled(kind(parameters()), "sync.servers=2", "sync.servers=1")


class Sparing(Scaled):
    """Steps as SGD does on any tensor."""

    def scaled(self, gradient: Tensor) -> Tensor:
        return gradient


@pytest.mark.parametrize("lr", [None, 0.0, 1e-30, 0.1])
def test_groups_without_parameters_and_empty_parameters_are_passed_over(lr):
    params = [*parameters(), nn.Parameter(torch.empty(0, 3)), nn.Parameter(torch.tensor(1.0))]
    optimizer = Sparing([{"params": []}, {"params": params[-2:-1]}, {"params": [*params[:-2], params[-1]]}], lr)
    for check in (check_elementwise, check_uncoupled):
        check(optimizer, "sync.shard=optimizer", "sync.shard=none")


@pytest.mark.parametrize("make", [torch.optim.Adagrad, partial(torch.optim.Adam, fused=True, lr=1e-30)], ids=str)
def test_elementwise_steps_of_tensors_of_any_shape_pass(make):
    check_elementwise(make(parameters()), "sync.shard=optimizer", "sync.shard=none")
