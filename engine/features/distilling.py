"""`distillation`: a frozen teacher's outputs are learnt beside the labels (tasks/distillation.py).

The teacher is the model of a finished run, by that run's config.yaml, with its model.safetensors. Each worker has it
whole, and asks it in a step before its own passes, in float32 and evaluation mode, so that nothing is drawn and no
running statistic moves. It is neither sent nor saved: a run goes on with the teacher's run where that was.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from ...batches import Fields, Samples, call, of_each
from ...conf.errors import ConfigError
from ...strategies import Batch
from ...strategies.core.cost import Memory, payload
from ...strategies.core.loss import Loss, is_mean_cross_entropy
from ...strategies.core.state import load_state, state_of
from ...strategies.core.terms import NOT_PRIVATE, OWN_PASSES, Need
from ...tasks.contents import contents
from ...tasks.distillation import Distillation, taught
from ...tasks.losses.base import Task
from ...tasks.losses.hinge import MarginTask
from ...tracking.run_directory import RunDirectory, is_run
from ..base import ROOT
from ..config.experiment import Experiment
from ..config.looking import on_meta
from ..config.stored import read_stored
from ..config.targets import build
from . import weights
from .feature import Chosen, Context, Feature, Hooks

GROUP = "distillation"
KEY = f"{GROUP}.teacher"


@dataclass(frozen=True)
class Teacher:
    """A finished run whose outputs are learnt.

    `model`: on the meta device. `on`: with its weights, one for each device of this process. `file` has these.
    """

    model: nn.Module
    file: Path
    name: str  # of its choice of model
    on: Callable[[torch.device], nn.Module]


@dataclass(frozen=True)
class Distilled(Feature):
    """A teacher's outputs are learnt beside the labels."""

    method: Distillation
    chosen: Chosen
    key = GROUP
    unpredicted = "asks another model in each step"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        method = build(GROUP, chosen.experiment.choice(GROUP), Distillation, chosen.allowed, {})
        return cls(method, chosen) if method.teaches else None

    @classmethod
    def unmodelled(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        return "" if experiment.choice(GROUP).name == "none" else "asks another model in each step"

    @classmethod
    def unverified(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        name = experiment.choice(GROUP).name
        return "" if name == "none" else f"{GROUP}={name}: the reference learns labels alone. Choose {GROUP}=none."

    def needs(self, chosen: Chosen) -> Sequence[Need]:
        adds = "adds the teacher's outputs to the targets of the whole model"
        learns = "has a teacher whose training data are not covered by this run's epsilon"
        return [Need(OWN_PASSES, adds), Need(NOT_PRIVATE, learns)]

    @cached_property
    def teacher(self) -> Teacher:
        return _teacher(self.method, self.chosen)

    def check(self, chosen: Chosen) -> None:
        assert self.teacher, "which is there, or refused"

    def check_files(self) -> None:
        """Refuses a file without the weights of this model. Raises `ConfigError` or `CorruptCheckpointError`."""
        shapes = {name: list(each.shape) for name, each in state_of(self.teacher.model).items()}
        weights.check(str(self.teacher.file), shapes, self.teacher.name, frozenset(), key=KEY)

    def loss(self, plain: Loss) -> Loss:
        return self.method.loss(plain)

    def targets(self, inputs: Samples, targets: Samples, model: nn.Module | None = None) -> Fields:
        """Returns the targets as the loss takes them; without a `model` on the meta device.

        The teacher is given copies of the inputs, which it may change.
        """
        with torch.no_grad():
            return taught(targets, call(model or self.teacher.model, of_each(inputs, Tensor.clone)))

    def memory(self, module: nn.Module, trained: Sequence[Tensor]) -> Memory:
        return {"buffers": payload([*state_of(self.teacher.model).values()])}

    def hooks(self, context: Context) -> Hooks:
        return Distilling(self, context)


class Distilling(Hooks):
    """Asks the teacher in each step."""

    def __init__(self, distilled: Distilled, context: Context) -> None:
        self._distilled, self._context = distilled, context

    def loss(self, plain: Loss) -> Loss:
        return self._distilled.loss(plain)

    def batch(self, batch: Batch) -> Batch:
        if batch.size == 0:
            return batch
        model = self._distilled.teacher.on(self._context.device)
        self._context.compute.frozen(model, batch.inputs)
        return replace(batch, targets=self._distilled.targets(batch.inputs, batch.targets, model))

    def tensors(self) -> Mapping[str, Sequence[Tensor]]:
        return {"buffers": [*state_of(self._distilled.teacher.on(self._context.device)).values()]}


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


def _teacher(method: Distillation, chosen: Chosen) -> Teacher:
    """Raises `ConfigError`."""
    data, allowed = chosen.data, chosen.allowed
    _check(chosen, f"{GROUP}={chosen.experiment.choice(GROUP).name}")
    if method.teacher is None:
        raise ConfigError(f"{KEY}=null: must be a finished run, by its name or its directory")
    run = RunDirectory(Path(method.teacher))
    file = weights.learnt(method.teacher, run.path, KEY)
    stored = read_stored(run).experiment
    model = stored.model
    _check_learnt(chosen, run, stored)

    def make() -> nn.Module:
        made = build("model", model, nn.Module, allowed, {"spec": data.spec})
        return made.eval().requires_grad_(False)

    @cache
    def on(device: torch.device) -> nn.Module:
        with torch.random.fork_rng(devices=[]):  # what is drawn here is written over
            made = make()
        state = weights.load(str(file), run.path, KEY)
        weights.check_kinds(f"{KEY}={file}", state, state_of(made))
        load_state(made, state)
        return made.to(device)

    return Teacher(on_meta(make)[0], file, model.name, on)


def _check_learnt(chosen: Chosen, run: RunDirectory, stored: Experiment) -> None:
    """Raises `ConfigError` for a teacher whose outputs are no probabilities of the student's classes."""
    told = f"{KEY}={run.path}"
    if _has_margins(stored, chosen.allowed):
        raise ConfigError(
            f"{told}: was trained with task={stored.task.name}, whose scores are no logits of probabilities. Choose a "
            "teacher of task=cross_entropy."
        )
    own = contents(chosen.data.source.spec, chosen.data.described())
    for what, words in weights.differing(run.path, own, chosen.experiment.data.name):
        raise ConfigError(
            f"{told}: its {what} {words}. Choose data with the same ones in the same order, or another teacher."
        )


def _has_margins(stored: Experiment, allowed: tuple[str, ...]) -> bool:
    """Returns whether a run learnt margins. Of a task that may not be imported nothing is known: False."""
    try:
        return isinstance(build("task", stored.task, Task, allowed, {}), MarginTask)
    except ConfigError:
        return False


def _check(chosen: Chosen, name: str) -> None:
    experiment = chosen.experiment
    if not is_mean_cross_entropy(chosen.task.loss):
        raise ConfigError(
            f"{name}: learns probabilities of classes, and task={experiment.task.name} makes none of a model's "
            "outputs; task=cross_entropy and task=smoothed_labels do"
        )
    if chosen.data.spec.weights:
        raise ConfigError(f"{name}: has no weights of samples, and those of data={experiment.data.name} have some")
