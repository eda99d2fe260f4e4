"""Checks the choices beside optimizer=pegasos, a solver of one problem, and of no other."""

from collections.abc import Sequence
from typing import Self

from torch import nn
from torch.optim import Optimizer

from ...conf.errors import ConfigError
from ...strategies.core.terms import (
    ALL_STEPPED,
    BATCH_GRADIENTS,
    MEAN_LENGTH,
    MESSAGE_LENGTH,
    NO_SERVERS,
    UNCLIPPED,
    Need,
)
from ...strategies.optimizers.pegasos import Pegasos
from ...tasks.losses import Hinge
from ...tasks.losses.base import Task
from ..config.experiment import Experiment
from ..config.targets import load_class
from .feature import Chosen, Feature, Parts


class SolvesSVM(Feature):
    """The optimizer is a solver of one problem."""

    key = "optimizer"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        optimizer = load_class("optimizer", chosen.experiment.optimizer.target, Optimizer, chosen.allowed)
        return cls() if issubclass(optimizer, Pegasos) else None

    def needs(self, chosen: Chosen) -> Sequence[Need]:
        whole = "steps with the weights and biases of a class together"
        plain = "divides the gradient as it is by lambda t"
        lengths = UNCLIPPED, MESSAGE_LENGTH, MEAN_LENGTH, BATCH_GRADIENTS
        other = "optimizer=sgd"
        needs = [Need(ALL_STEPPED, whole, instead=other), Need(NO_SERVERS, whole, instead=other)]
        return [*needs, *(Need(term, plain, instead=other) for term in lengths)]

    def check_parts(self, parts: Parts) -> None:
        check(parts.experiment, parts.task, parts.modules)


def check(experiment: Experiment, task: Task, modules: Sequence[nn.Module]) -> None:
    """Raises `ConfigError`."""
    chosen = f"optimizer={experiment.optimizer.name}"
    if not (isinstance(task, Hinge) and task.multiclass == "one_vs_rest"):
        learnt = f"task={experiment.task.name}"
        if isinstance(task, Hinge):
            learnt += f" task.multiclass={task.multiclass}"
        raise ConfigError(
            f"{chosen}: minimises the hinge loss of one class against the others, and {learnt} is another. Choose "
            "task=hinge task.multiclass=one_vs_rest, or optimizer=sgd."
        )
    layers = [each for each in modules[0].modules() if not list(each.children())]
    if not isinstance(layers[-1], nn.Linear) or not all(each.requires_grad for each in layers[-1].parameters()):
        raise ConfigError(
            f"{chosen}: the outputs must be linear in what is trained, and the last layer of model="
            f"{experiment.model.name} is a {type(layers[-1]).__name__}. Choose model=linear, or optimizer=sgd."
        )
