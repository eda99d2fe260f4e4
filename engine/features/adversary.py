"""`adversarial_training`: a replica's batch is changed before it is learnt (tasks/adversarial/training.py).

Each replica changes its own samples, between `Sync.begin` and its passes, with the weights that it steps from: nothing
is sent. It takes the whole model on one worker; a model in pieces would have to pass gradients of inputs along.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...batches import lone
from ...strategies import Batch, Strategy
from ...strategies.core.loss import Loss
from ...tasks.adversarial.robust import check_range
from ...tasks.adversarial.training import AdversarialTraining, OnAttacks
from ...tasks.base import DataSpec
from ..base.errors import ConfigError
from ..config.experiment import Experiment
from ..config.targets import build
from ..fabrics.compute import ModelledCompute, RealCompute
from .robustness import check_furthest, needs_range

GROUP = "adversarial_training"


@dataclass(frozen=True)
class Adversary:
    """Of a worker. `loss`: the task's, of outputs and targets with their weights."""

    training: AdversarialTraining
    loss: Loss
    seed: int

    def change(
        self,
        strategy: Strategy,
        batch: Batch,
        numbers: Tensor,
        sizes: Sequence[int],
        compute: ModelledCompute | RealCompute,
    ) -> Batch:
        """`numbers`: of the samples in the training split. `sizes`: of micro-batches, held one at a time."""
        if batch.size == 0:
            return batch
        changed: list[Tensor] = []
        pieces = zip(*(each.split(list(sizes)) for each in (batch.inputs, batch.targets, numbers)), strict=True)
        for inputs, targets, some in pieces:
            if len(some) == 0:
                continue
            x = lone(inputs)
            if isinstance(self.training, OnAttacks):
                threat = self.training.threat
                check_range(x, threat.low, threat.high, f"training samples {some[:3].tolist()} and their like")
            compute.to_inputs(x, self.training.passes)
            changed.append(self.training.change(strategy.module, self.loss, x, targets, some, (self.seed, batch.step)))
        return replace(batch, inputs=torch.cat(changed) if len(changed) > 1 else changed[0])


def training_of(
    experiment: Experiment, spec: DataSpec, strategy: Strategy, allowed: tuple[str, ...]
) -> AdversarialTraining:
    """As it is chosen. Raises `ConfigError` where the strategy or the data do not allow it."""
    choice = experiment.choice(GROUP)
    made = build(GROUP, choice, AdversarialTraining, allowed, {"range": spec.range or (0.0, 1.0)})
    if made.passes == 0:
        return made
    chosen = f"{GROUP}={choice.name}"
    needs_range(chosen, experiment.data.name, spec)
    if isinstance(made, OnAttacks):
        check_furthest(GROUP, "eps", made.threat.eps, made.threat.norm.name, spec)
    if not strategy.traits.runs_whole:
        raise ConfigError(
            f"{chosen}: takes gradients by the inputs of a replica's whole model on one worker, and strategy="
            f"{experiment.strategy.name} has it in pieces or leaves its passes to a library; strategy=data_parallel "
            "(with any sync mode) and strategy=single take it"
        )
    return made
