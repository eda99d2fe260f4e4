"""Callbacks of a user's, for tests."""

import gc
from typing import Any

import torch

from paceline.engine.callbacks import Callback, EvaluationView, StepView


class Margin(Callback):
    """How much more the model gives the first class than the second, on average."""

    sees = frozenset({"outputs"})

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def each_step(self, view: StepView) -> dict[str, Any]:
        top = torch.cat(list(view.outputs)).topk(2, dim=-1).values
        assert len(top) == sum(map(len, view.targets))
        return {"margin": self.scale * (top[:, 0] - top[:, 1]).mean()}


class Missed(Callback):
    """The share of the test split that is missed; it draws random numbers, too."""

    def each_evaluation(self, view: EvaluationView) -> dict[str, Any]:
        torch.rand(3)
        assert not view.model.training and not torch.is_grad_enabled()
        taken = view.test.take(slice(None))
        assert isinstance(taken.inputs, torch.Tensor)
        guesses = view.model(taken.inputs.to(view.device)).argmax(dim=-1)
        return {"missed": (guesses != taken.targets).float().mean()}


class Raising(Callback):
    def each_step(self, view: StepView) -> dict[str, Any]:
        if view.step == 3:
            raise ZeroDivisionError("no third step")
        return {}


class Odd(Callback):
    def __init__(self, name: str = "loss", value: Any = 1.0) -> None:
        self.name, self.value = name, value

    def each_step(self, view: StepView) -> dict[str, Any]:
        return {self.name: self.value}


class Scripted(Callback):
    """Measures what it was told to, evaluation by evaluation."""

    def __init__(self, values: list[float]) -> None:
        self.values, self.calls = values, 0

    def each_evaluation(self, view: EvaluationView) -> dict[str, Any]:
        self.calls += 1
        return {"scripted": self.values[min(self.calls, len(self.values)) - 1]}

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class Frozen(Callback):
    """The number of objects that Python's garbage collector leaves alone."""

    def each_step(self, view: StepView) -> dict[str, Any]:
        return {"frozen": gc.get_freeze_count()}
