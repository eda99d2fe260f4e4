"""Lean steps are those of torch.optim, bit for bit, with the same state; other optimizers step by themselves."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.compat import optimizers

KNOBS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"maximize": True},
    {"foreach": True, "momentum": 0.9},
]


def grown(kind: Any, lean: bool, **knobs: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """Returns the parameters after five steps, in some of which one has no gradient, and the state."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in ((13, 5), (7,), (), (3, 3))]
    own = kind([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.01}], lr=0.1, **knobs)
    for number in range(5):
        (optimizers.clear_gradients if lean else kind.zero_grad)(own)
        assert all(each.grad is None for each in parameters)
        for i, each in enumerate(parameters):
            if number != i:
                each.grad = torch.randn(each.shape)
        (optimizers.step if lean else kind.step)(own)
    return [each.detach() for each in parameters], copy.deepcopy(own.state_dict())


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_lean_steps_of_sgd_are_those_of_torch(knobs: dict[str, Any]) -> None:
    (found, state), (expected, its) = (grown(torch.optim.SGD, lean, **knobs) for lean in (True, False))
    assert all(map(torch.equal, found, expected))
    assert state["param_groups"] == its["param_groups"] and [*state["state"]] == [*its["state"]]
    for i, own in its["state"].items():
        assert own.keys() == state["state"][i].keys() and all(map(_is_equal, own.values(), state["state"][i].values()))


def _is_equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else a is b


def test_another_optimizer_steps_by_itself() -> None:
    assert all(map(torch.equal, grown(torch.optim.Adam, True)[0], grown(torch.optim.Adam, False)[0]))


class Negated(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for each in group["params"]:
                each.grad = None if each.grad is None else -each.grad
        return super().step(closure)


def test_a_class_of_somebodys_steps_by_itself() -> None:
    found, expected = grown(Negated, True)[0], grown(torch.optim.SGD, False, maximize=True)[0]
    assert all(map(torch.equal, found, expected))


def test_sparse_gradients_are_left_to_torch() -> None:
    found: list[Tensor] = []
    for step in (optimizers.step, torch.optim.SGD.step):
        torch.manual_seed(0)
        rows = nn.Embedding(4, 2, sparse=True)
        own = torch.optim.SGD(rows.parameters(), lr=0.1)
        rows(torch.tensor([1, 1, 3])).sum().backward()
        step(own)
        found.append(rows.weight.detach())
    assert torch.equal(*found)


def test_hooks_of_a_step_are_called() -> None:
    weight = nn.Parameter(torch.ones(2))
    own, called = torch.optim.SGD([weight], lr=0.1), list[str]()
    own.register_step_pre_hook(lambda *args: called.append("before"))
    own.register_step_post_hook(lambda *args: called.append("after"))
    weight.grad = torch.ones(2)
    optimizers.step(own)
    assert called == ["before", "after"]


def test_a_lean_step_tells_no_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def tells(*_: Any) -> Any:
        raise AssertionError("torch.optim stepped")

    monkeypatch.setattr(torch.autograd.profiler, "record_function", tells)
    grown(torch.optim.SGD, True, momentum=0.9)
    with pytest.raises(AssertionError, match="stepped"):
        grown(torch.optim.SGD, False)
