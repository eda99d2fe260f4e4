"""Attacks on samples: where batches come to a worker that lies, and what a backdoor is worth."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...batches import call, lone
from ...exchange.attack import Attack, Backdoor, Poison
from ...strategies.core.errors import LayoutError
from ...tasks.base import DataSpec, Readable, Taken
from ...tasks.losses.base import Task
from ...tasks.losses.metrics import Accuracy
from .parts import Given

if TYPE_CHECKING:
    from .parts import Parts

SUCCESS = "backdoor_success"  # in records and comparisons


def found(of_groups: Given) -> Poison | None:
    attack = of_groups["attack"]
    assert isinstance(attack, Attack)
    return attack if isinstance(attack, Poison) else None


def check(of_groups: Given, spec: DataSpec, task: Task, replicas: int) -> None:
    """Raises `LayoutError`, of attack and data."""
    attack = found(of_groups)
    if attack is None:
        return
    attack.check(replicas)
    shapes = {name: torch.Size(field.shape) for name, field in spec.fields.items()}
    attack.check_data(shapes, all(field.dtype.is_floating_point for field in spec.fields.values()), spec.classes)
    if isinstance(attack, Backdoor) and not isinstance(task.metric, Accuracy):
        raise LayoutError(
            "attack: what it is worth is told of the label with the largest output, and this task's outputs are other "
            "ones; choose task=cross_entropy, or attack=label_flip"
        )


def of(parts: "Parts", replica: int) -> Callable[[Taken, int], Taken] | None:
    """What is done to the batches of this replica; None where nothing is."""
    attack, classes = found(parts.of_groups), parts.data.spec.classes
    if attack is None or replica not in attack.liars(parts.layout.replicas):
        return None

    def poisoned(taken: Taken, step: int) -> Taken:
        if step < attack.from_step or len(taken.targets) == 0:
            return taken
        inputs, targets = attack.poisoned(taken.inputs, taken.targets, classes)
        return replace(taken, inputs=inputs, targets=targets)

    return poisoned


@torch.no_grad()
def success(of_groups: Given, model: nn.Module, test: Readable, at_once: int, device: torch.device) -> dict[str, float]:
    """Of a model in evaluation mode on `device`: the share of test samples of other classes that get the target's label
    with the patch on, by its name; {} where there is no backdoor.
    """
    attack = found(of_groups)
    if not isinstance(attack, Backdoor):
        return {}
    fooled = others = 0
    for first in range(0, len(test), at_once):
        taken = test.take(slice(first, first + at_once))
        images = lone(taken.inputs)[taken.targets != attack.target]
        if len(images):
            said = call(model, attack.triggered(images).to(device)).argmax(dim=-1)
            fooled, others = fooled + int((said == attack.target).sum()), others + len(images)
    return {SUCCESS: fooled / max(others, 1)}
