"""`adversarial_training`: a replica's batch is changed before it is learnt (tasks/adversarial/training.py).

Each replica changes its own samples, between `Sync.begin` and its passes, with the weights that it steps from: nothing
is sent. It takes the whole model on one worker; a model in pieces would have to pass gradients of inputs along.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ...batches import Samples, lone
from ...strategies import Batch, Strategy
from ...strategies.core.loss import Loss
from ...strategies.core.terms import OWN_PASSES, Need
from ...tasks.adversarial.attacks import ascent, evaluating
from ...tasks.adversarial.robust import check_range
from ...tasks.adversarial.training import AdversarialTraining, OnAttacks
from ..base import memory
from ..config.experiment import Experiment
from ..config.targets import build
from ..fabrics.compute import ModelledCompute, RealCompute
from .feature import Chosen, Context, Feature, Hooks, Parts
from .robustness import check_furthest, needs_range

GROUP = "adversarial_training"


@dataclass(frozen=True)
class TrainsOnAttacks(Feature):
    """Batches are changed so that the model errs on them, before they are learnt."""

    training: AdversarialTraining
    key = GROUP
    unpredicted = "makes passes before a step's own, which are not modelled here"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        told = {"range": chosen.data.spec.range or (0.0, 1.0)}
        training = build(GROUP, chosen.experiment.choice(GROUP), AdversarialTraining, chosen.allowed, told)
        return cls(training) if training.passes else None

    @classmethod
    def unmodelled(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        return "" if experiment.choice(GROUP).name == "none" else "makes passes before a step's own"

    @classmethod
    def unverified(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        if (name := experiment.choice(GROUP).name) == "none":
            return ""
        return (
            f"{GROUP}={name}: the reference learns samples as they are, and changed ones follow from weights to the "
            f"last bit. Choose {GROUP}=none."
        )

    def needs(self, chosen: Chosen) -> Sequence[Need]:
        return [Need(OWN_PASSES, "takes gradients by the inputs of the whole model")]

    def check(self, chosen: Chosen) -> None:
        experiment, spec = chosen.experiment, chosen.data.spec
        name = f"{GROUP}={experiment.choice(GROUP).name}"
        needs_range(name, experiment.data.name, spec)
        if isinstance(self.training, OnAttacks):
            threat = self.training.threat
            check_furthest(GROUP, "eps", threat.eps, threat.norm.name, spec)

    def activations(self, parts: Parts, inputs: Samples, targets: Samples) -> int:
        """Returns the bytes that a pass forward and back to the inputs keeps."""
        model = parts.modules[0]
        with evaluating(model), memory.activations() as account:
            ascent(model, parts.task.function(parts.data.spec), lone(inputs), targets)
        return account.peak

    def hooks(self, context: Context) -> Hooks:
        parts = context.parts
        return Adversary(self.training, parts.task.function(parts.data.spec), context)


class Adversary(Hooks):
    """Changes a replica's batches. `loss`: the task's, of outputs and targets with their weights."""

    def __init__(self, training: AdversarialTraining, loss: Loss, context: Context) -> None:
        self._training, self._loss, self._context = training, loss, context
        self._seed = context.parts.experiment.seed

    def batch(self, batch: Batch) -> Batch:
        parts = self._context.parts
        numbers = parts.deal().indices(batch.step, self._context.role.replica)
        sizes = parts.accumulation.sizes(batch.size)
        return self.change(parts.strategy, batch, numbers, sizes, self._context.compute)

    def change(
        self,
        strategy: Strategy,
        batch: Batch,
        numbers: Tensor,
        sizes: Sequence[int],
        compute: ModelledCompute | RealCompute,
    ) -> Batch:
        """Returns the changed batch.

        Args:
            numbers: of the samples in the training split.
            sizes: of micro-batches, held one at a time.
        """
        if batch.size == 0:
            return batch
        changed: list[Tensor] = []
        pieces = zip(*(each.split(list(sizes)) for each in (batch.inputs, batch.targets, numbers)), strict=True)
        for inputs, targets, some in pieces:
            if len(some) == 0:
                continue
            x = lone(inputs)
            if isinstance(self._training, OnAttacks):
                threat = self._training.threat
                check_range(x, threat.low, threat.high, f"training samples {some[:3].tolist()} and their like")
            compute.to_inputs(x, self._training.passes)
            drawn = self._seed, batch.step
            changed.append(self._training.change(strategy.module, self._loss, x, targets, some, drawn))
        return replace(batch, inputs=torch.cat(changed) if len(changed) > 1 else changed[0])
