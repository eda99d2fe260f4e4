"""`distillation`: a frozen teacher's outputs are learnt beside the labels (tasks/distillation.py).

The teacher is the model of a finished run, by that run's config.yaml, with its model.safetensors. Each worker has it
whole, and asks it in a step before its own passes, in float32 and evaluation mode, so that nothing is drawn and no
running statistic moves. It is neither sent nor saved: a run goes on with the teacher's run where that was.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import nn

from ...batches import Fields, Samples, call
from ...strategies import Batch, Strategy, Sync
from ...strategies.core.cost import payload
from ...strategies.core.loss import is_mean_cross_entropy
from ...strategies.core.state import load_state, state_of
from ...tasks.base import Data
from ...tasks.distillation import Distillation, taught
from ...tasks.losses.base import Task
from ...tracking.run_directory import RunDirectory, is_run
from ..base import ROOT
from ..base.errors import ConfigError
from ..config.experiment import Experiment
from ..config.looking import on_meta
from ..config.stored import read_stored
from ..config.targets import build
from ..fabrics.compute import ModelledCompute, RealCompute
from . import weights

GROUP = "distillation"
KEY = f"{GROUP}.teacher"


@dataclass(frozen=True)
class Teacher:
    """`model`: on the meta device. `on`: with its weights, one for each device of this process. `file` has these."""

    method: Distillation
    model: nn.Module
    file: Path
    name: str  # of its choice of model
    on: Callable[[torch.device], nn.Module]

    def teach(self, batch: Batch, device: torch.device, compute: ModelledCompute | RealCompute) -> Batch:
        if batch.size == 0:
            return batch
        model = self.on(device)
        compute.frozen(model, batch.inputs)
        return replace(batch, targets=self.targets(batch.inputs, batch.targets, model))

    def targets(self, inputs: Samples, targets: Samples, model: nn.Module | None = None) -> Fields:
        """As the loss takes them; without a `model` on the meta device."""
        with torch.no_grad():
            return taught(targets, call(model or self.model, inputs))

    def nbytes(self) -> int:
        return payload([*state_of(self.model).values()])

    def check(self) -> None:
        """Whether the file has the weights of this model. Raises `ConfigError` or `CorruptCheckpointError`."""
        shapes = {name: list(each.shape) for name, each in state_of(self.model).items()}
        weights.check(str(self.file), shapes, self.name, frozenset(), key=KEY)


def resolved(experiment: Experiment, root: Path | str = ROOT) -> Experiment:
    """`teacher` as an absolute path; workers have another current directory. Raises `ConfigError`."""
    chosen = experiment.choice(GROUP)
    told = chosen.knobs.get("teacher")
    if not isinstance(told, str):
        return experiment
    path = weights.find(told, root, KEY)
    if not is_run(path):
        raise ConfigError(f"{KEY}={told}: must be a run, by its name or its directory, whose model is known")
    weights.learnt(told, path, KEY)
    return experiment.model_copy(
        update={GROUP: chosen.model_copy(update={"knobs": {**chosen.knobs, "teacher": str(path)}})}
    )


def teacher_of(
    experiment: Experiment, data: Data, task: Task, strategy: Strategy, sync: Sync, allowed: tuple[str, ...]
) -> Teacher | None:
    """None where labels alone are learnt. Raises `ConfigError`."""
    choice = experiment.choice(GROUP)
    method = build(GROUP, choice, Distillation, allowed, {})
    if not method.teaches:
        return None
    _check(experiment, f"{GROUP}={choice.name}", data, task, strategy, sync)
    if method.teacher is None:
        raise ConfigError(f"{KEY}=null: must be a finished run, by its name or its directory")
    run = RunDirectory(Path(method.teacher))
    file = weights.learnt(method.teacher, run.path, KEY)
    model = read_stored(run).experiment.model

    def make() -> nn.Module:
        made = build("model", model, nn.Module, allowed, {"spec": data.spec})
        return made.eval().requires_grad_(False)

    @cache
    def on(device: torch.device) -> nn.Module:
        with torch.random.fork_rng(devices=[]):  # what is drawn here is written over
            made = make()
        load_state(made, weights.load(str(file), run.path, KEY))
        return made.to(device)

    return Teacher(method, on_meta(make)[0], file, model.name, on)


def _check(experiment: Experiment, chosen: str, data: Data, task: Task, strategy: Strategy, sync: Sync) -> None:
    if not strategy.traits.runs_whole:
        raise ConfigError(
            f"{chosen}: adds the teacher's outputs to the targets of a replica's whole model on one worker, and "
            f"strategy={experiment.strategy.name} has it in pieces or leaves its passes to a library; "
            "strategy=data_parallel (with any sync mode) and strategy=single take it"
        )
    if not is_mean_cross_entropy(task.loss):
        raise ConfigError(
            f"{chosen}: learns probabilities of classes, and task={experiment.task.name} makes none of a model's "
            "outputs; task=cross_entropy and task=smoothed_labels do"
        )
    if data.spec.weights:
        raise ConfigError(f"{chosen}: has no weights of samples, and those of data={experiment.data.name} have some")
    if sync.privacy is not None:
        raise ConfigError(
            f"{chosen}: what a teacher has learnt of other samples is in no epsilon of privacy="
            f"{experiment.choice('privacy').name}; choose {GROUP}=none, or privacy=none"
        )
