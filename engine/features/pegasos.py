"""Checks the choices beside optimizer=pegasos, a solver of one problem, and of no other."""

from collections.abc import Iterator, Sequence
from typing import Self

from torch import nn
from torch.optim import Optimizer

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from ...exchange.aggregate import MajorityVote
from ...exchange.clip import Clip, Unclipped
from ...exchange.compress import DGC, DeMo, SignSGD
from ...exchange.privacy import DPSGD
from ...strategies import Strategy, Sync
from ...strategies.data_parallel import DataParallel
from ...strategies.optimizers.pegasos import Pegasos
from ...strategies.single import Single
from ...strategies.torch_ddp import TorchDDP
from ...tasks.losses import Hinge
from ...tasks.losses.base import Task
from ..base.refusals import refuse
from ..config.experiment import Experiment
from ..config.targets import load_class
from .feature import Chosen, Feature, Given, Parts

# Each worker's optimizer has all parameters of the replica, but for torch's ZeroRedundancyOptimizer
WHOLE = (DataParallel, Single, TorchDDP)
# What changes how long a gradient is
_RESIZES: dict[type, str] = {
    Clip: "shortens a gradient that is too long",
    DeMo: "makes signs of momenta",
    DGC: "adds momentum to a gradient",
    DPSGD: "shortens the gradients of samples",
    MajorityVote: "makes signs of gradients",
    SignSGD: "makes signs of gradients",
}


class SolvesSVM(Feature):
    """The optimizer is a solver of one problem."""

    key = "optimizer"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        optimizer = load_class("optimizer", chosen.experiment.optimizer.target, Optimizer, chosen.allowed)
        return cls() if issubclass(optimizer, Pegasos) else None

    def check_parts(self, parts: Parts) -> None:
        check(parts.experiment, parts.task, parts.strategy, parts.sync, parts.modules, parts.of_groups)


def check(
    experiment: Experiment,
    task: Task,
    strategy: Strategy,
    sync: Sync,
    modules: Sequence[nn.Module],
    of_groups: Given,
) -> None:
    """Raises `ConfigError`."""
    chosen = f"optimizer={experiment.optimizer.name}"
    if not (isinstance(task, Hinge) and task.multiclass == "one_vs_rest"):
        learnt = f"task={experiment.task.name}"
        if isinstance(task, Hinge):
            learnt += f" task.multiclass={task.multiclass}"
        raise ConfigError(
            f"{chosen}: minimises the hinge loss of one class against the others, and {learnt} is another; choose "
            "task=hinge task.multiclass=one_vs_rest, or optimizer=sgd"
        )
    if not isinstance(strategy, WHOLE) or getattr(strategy, "zero_optimizer", False):
        raise ConfigError(
            f"{chosen}: a step is of weights and biases together, and strategy={experiment.strategy.name} may share "
            "them out; choose strategy=data_parallel, single or torch_ddp"
        )
    if sync.servers:
        raise ConfigError(
            f"{chosen}: a step is of weights and biases together, and the servers of sync={experiment.sync.name} step "
            "with tensors of their own; choose sync=bsp, which sums the gradients of all in each step, or optimizer=sgd"
        )
    refuse(_resized(experiment, chosen, of_groups))
    layers = [each for each in modules[0].modules() if not list(each.children())]
    if not isinstance(layers[-1], nn.Linear) or not all(each.requires_grad for each in layers[-1].parameters()):
        raise ConfigError(
            f"{chosen}: the outputs must be linear in what is trained, and the last layer of model="
            f"{experiment.model.name} is a {type(layers[-1]).__name__}; choose model=linear, or optimizer=sgd"
        )


def _resized(experiment: Experiment, chosen: str, of_groups: Given) -> Iterator[str]:
    for group, made in of_groups.items():
        why = next((why for kind, why in _RESIZES.items() if isinstance(made, kind)), None)
        if why is not None and not isinstance(made, Unclipped):
            usual = BY_NAME[group].usual
            yield (
                f"{group}={experiment.choice(group).name}: {why}, and a step of {chosen} is the gradient as it is over "
                f"lambda t, or it comes to another minimum; choose {group}={usual}, or optimizer=sgd"
            )
