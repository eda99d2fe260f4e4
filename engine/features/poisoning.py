"""Attacks on samples: the batches of a Byzantine replica are changed, and a backdoor's success is measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import nn

from ...batches import call, lone
from ...conf.errors import ConfigError
from ...exchange.attack import Attack, Backdoor, Honest, Poison
from ...tasks.base import Readable, Taken
from ...tasks.losses.metrics import Accuracy
from ..callbacks.base import EvaluationView
from . import byzantine, injected
from .feature import Chosen, Context, Feature, Hooks, Injected, Known
from .sizes import evaluated_at_once

SUCCESS = "backdoor_success"  # in records and comparisons


@dataclass(frozen=True)
class Attacked(Feature):
    """Some replicas lie (`attack`)."""

    attack: Attack
    key = "attack"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        attack = chosen.of_groups["attack"]
        assert isinstance(attack, Attack)
        return None if isinstance(attack, Honest) else cls(attack)

    @property
    def unpredicted(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "changes samples, which is not modelled" if isinstance(self.attack, Poison) else ""

    @property
    def uses(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (self.key,) if isinstance(self.attack, Poison) else ()

    def check(self, chosen: Chosen) -> None:
        if isinstance(self.attack, Poison):
            with injected.naming(chosen.experiment):
                _check(self.attack, chosen)

    def hooks(self, context: Context) -> Hooks | None:
        return Poisoning(self.attack, context) if isinstance(self.attack, Poison) else None

    def notes(self, known: Known) -> list[str]:
        return byzantine.notes_on(known.parts, self.attack, known.steps)


def found(of_groups: Injected) -> Poison | None:
    attack = of_groups["attack"]
    return attack if isinstance(attack, Poison) else None


def _check(attack: Poison, chosen: Chosen) -> None:
    """Raises `ConfigError`, of attack and data."""
    spec = chosen.data.spec
    attack.check(chosen.layout.replicas)
    shapes = {name: torch.Size(field.shape) for name, field in spec.fields.items()}
    attack.check_data(shapes, all(field.dtype.is_floating_point for field in spec.fields.values()), spec.classes)
    if isinstance(attack, Backdoor) and not isinstance(chosen.task.metric, Accuracy):
        raise ConfigError(
            "attack: what it is worth is told of the label with the largest output, and this task's outputs are other "
            "ones. Choose task=cross_entropy, or attack=label_flip."
        )


class Poisoning(Hooks):
    """Changes the samples of a replica that lies, and measures a backdoor on the chief."""

    def __init__(self, attack: Poison, context: Context) -> None:
        self._attack, self._classes = attack, context.parts.data.spec.classes
        self._lies = context.role.replica in attack.byzantine(context.parts.layout.replicas)
        self._at_once, self._device = evaluated_at_once(context.parts), context.device
        self._last: dict[str, float] = {}

    def samples(self, taken: Taken, step: int) -> Taken:
        if not self._lies or step < self._attack.from_step or len(taken.targets) == 0:
            return taken
        inputs, targets = self._attack.poisoned(taken.inputs, taken.targets, self._classes)
        return replace(taken, inputs=inputs, targets=targets)

    def evaluated(self, view: EvaluationView) -> Mapping[str, float]:
        if isinstance(self._attack, Backdoor):
            self._last = {SUCCESS: success(self._attack, view.model, view.test, self._at_once, self._device)}
        return self._last

    def summary(self, done: int) -> Mapping[str, float]:
        return self._last


@torch.no_grad()
def success(attack: Backdoor, model: nn.Module, test: Readable, at_once: int, device: torch.device) -> float:
    """Returns the share of test samples of other classes that get the target's label with the patch on.

    `model` is in evaluation mode on `device`.
    """
    fooled = others = 0
    for first in range(0, len(test), at_once):
        taken = test.take(slice(first, first + at_once))
        images = lone(taken.inputs)[taken.targets != attack.target]
        if len(images):
            said = call(model, attack.triggered(images).to(device)).argmax(dim=-1)
            fooled, others = fooled + int((said == attack.target).sum()), others + len(images)
    return fooled / max(others, 1)
