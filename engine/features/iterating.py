"""Models that learn of samples alone, such as k-means: where they begin, and what goes with their steps.

Such a step makes the next weights of sums over samples, which it has from the mean gradient of all replicas. So it goes
where replicas step together with that mean, and with nothing that makes another gradient or other weights of it.
"""

from typing import Self

from torch import nn
from torch.optim import Optimizer

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from ...strategies import Sync
from ...strategies.core.protocols import stepped_by
from ...strategies.core.terms import OWN_STEPS, WHOLE_REPLICA, WHOLE_VECTORS, Need
from ...strategies.optimizers.iteration import Iteration
from ...tasks.losses.base import Task
from ...tasks.models.kmeans import KMeans
from ...tasks.models.unsupervised import Unsupervised
from ..config.experiment import Experiment, shipped
from ..config.targets import load_class
from . import compatibility
from .feature import Chosen, Feature, Known, Parts

# groups of which the usual choice alone goes with such a model
_PLAIN = ("adversarial_training", "adapt", "precision", "average", "clip", "attack", "privacy")
TASK = "task=reconstruction"


class Iterates(Feature):
    """The model has a step of its own, and none of the usual ones."""

    key = "model"

    @classmethod
    def of(cls, chosen: Chosen) -> Self:
        return cls()

    def check_model(self, chosen: Chosen, model: nn.Module) -> None:
        check(chosen.experiment, chosen.allowed, model, chosen.task, chosen.sync)
        if isinstance(model, Unsupervised):
            compatibility.check_run(chosen, [("model", need) for need in needs(chosen.experiment)])

    def initialise(self, parts: Parts, model: nn.Module) -> None:
        """A model that begins with training samples takes them. Raises ConfigError."""
        if isinstance(model, Unsupervised):
            model.begin(parts.load()[0])

    def notes(self, known: Known) -> list[str]:
        parts, samples = known.parts, known.samples
        experiment = parts.experiment
        batch = experiment.batch_size * parts.layout.replicas
        whole = samples is None or batch >= samples
        if whole or not isinstance(parts.model, KMeans) or experiment.optimizer.knobs.get("running"):
            return []
        return [
            f"optimizer.running=false: a step makes a centre the mean of its own of {batch:,} samples alone, of "
            f"{samples:,}, and forgets those before; optimizer.running=true counts all so far"
        ]


def check(experiment: Experiment, allowed: tuple[str, ...], model: nn.Module, task: Task, sync: Sync) -> None:
    """Checks that model, task and optimizer are of one kind. Raises `ConfigError`."""
    own = model if isinstance(model, Unsupervised) else None
    _check_task(experiment, own, task)
    _check_optimizer(experiment, own, load_class("optimizer", experiment.optimizer.target, Optimizer, allowed))
    if own is not None:
        _check_plain(experiment)
        _check_layout(experiment, own, sync)


def needs(experiment: Experiment) -> list[Need]:
    """Returns what the step of such a model needs."""
    step = f"model={experiment.model.name}"
    whole, mean = "steps with all of its parameters together", "steps with the mean gradient of all samples"
    return [
        Need(WHOLE_REPLICA, whole, step),
        Need(WHOLE_VECTORS, whole, step, "sync.servers=1"),
        Need(OWN_STEPS, mean, step),
    ]


def _check_task(experiment: Experiment, own: Unsupervised | None, task: Task) -> None:
    name, chosen = experiment.model.name, experiment.task.name
    if own is not None and task.targets != "none":
        raise ConfigError(f"task={chosen}: learns targets, and model={name} learns of samples alone. Choose {TASK}.")
    if own is None and task.targets == "none":
        raise ConfigError(
            f"task={chosen}: is for models that put out squared distances of samples, and model={name} does not. "
            "Choose model=kmeans or pca, or a task that learns the targets of the data, such as task=cross_entropy."
        )


def _check_optimizer(experiment: Experiment, own: Unsupervised | None, optimizer: type[Optimizer]) -> None:
    name, chosen = experiment.model.name, f"optimizer={experiment.optimizer.name}"
    step = optimizer.iteration if issubclass(optimizer, Iteration) else None
    if own is not None and step != own.iteration:
        raise ConfigError(f"{chosen}: model={name} has a step of its own. Choose optimizer={own.iteration}.")
    if own is None and step is not None:
        raise ConfigError(
            f"{chosen}: is the step of one model, which model={name} is not. Choose optimizer=sgd or another, or "
            f"a model for it (paceline explain {chosen})."
        )


def _check_layout(experiment: Experiment, model: Unsupervised, sync: Sync) -> None:
    name = experiment.model.name
    if len(stepped_by(sync, list(model.parameters()), 2)) > 1:
        raise ConfigError(
            f"strategy={experiment.strategy.name}: shares out the parameters that workers step, and the step of "
            f"model={name} takes all of them. Choose strategy=data_parallel."
        )


def _check_plain(experiment: Experiment) -> None:
    name = experiment.model.name
    for group in _PLAIN:
        usual = str(BY_NAME[group].usual)
        if experiment.choice(group) != shipped(group, usual):
            raise ConfigError(
                f"{group}={experiment.choice(group).name}: model={name} makes its step of the mean gradient of its "
                f"samples, as it is and in float32, and of nothing else. Choose {group}={usual}."
            )
    if experiment.evaluate.attack != "none":
        raise ConfigError(
            f"evaluate.attack={experiment.evaluate.attack}: has models err in their classes, and model={name} has "
            "none. Choose evaluate.attack=none."
        )
