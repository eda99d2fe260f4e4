"""The experiment that a wrapped script is: its sync mode, and refusals by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer, SparseAdam
from torch.utils.data import DataLoader

from ..conf.errors import ConfigError
from ..conf.groups import GROUPS
from ..engine.config.compose import compose
from ..engine.config.experiment import Choice, Experiment
from ..engine.config.targets import build
from ..engine.features import compatibility, injected, poisoning
from ..exchange.aggregate import Aggregator
from ..strategies import Strategy, Sync
from ..strategies.core.protocols import SideBySide, privacy_of
from ..strategies.core.state import state_of
from ..strategies.domains.replicas import check_process_group

STRATEGY = "data_parallel"  # a script's own forward pass is on the whole model
HARDWARE = ("hardware.timeout", "hardware.device")
MINE = ("sync", "seed", "target_accuracy", "tracking", "hardware", "strategy", *(g.name for g in GROUPS if g.injected))


@dataclass(frozen=True)
class WrappedScript:
    """The arguments of `wrap` that say what a script trains, and for how long."""

    model: nn.Module
    optimizer: Optimizer
    loader: "DataLoader[Any]"
    overrides: Sequence[str]
    name: str | None
    root: Path
    epochs: int
    steps: int | None = None

    def planned(self, batches: int) -> int:
        """Returns the steps that it makes, by what it said; else one for each of the `batches` of all passes."""
        return batches * self.epochs if self.steps is None else self.steps


def experiment_of(script: WrappedScript) -> Experiment:
    """Returns the defaults with the script's overrides, and its model, data and optimizer by their classes' names.

    Raises `ConfigError`.
    """
    _check_kinds(script)
    for text in script.overrides:
        _check_key(text)
    for key, value in {"epochs": script.epochs, "steps": script.steps}.items():
        if value is not None and (not isinstance(value, int) or value < 0):
            raise ConfigError(f"{key}={value}: must be a whole number, and not negative. Choose what the loop makes.")
    tracked = any(text.startswith("tracking") for text in script.overrides)
    experiment = compose([*script.overrides, *([] if tracked else ["tracking=none"])])
    if experiment.strategy.name != STRATEGY:
        raise ConfigError(
            f"strategy={experiment.strategy.name}: lays out the model and its passes itself, and a script has a loop "
            f"of its own; wrap takes strategy={STRATEGY}, and paceline train the model as a class (docs/your_own.md)"
        )
    if experiment.hardware.fabric == "virtual":
        raise ConfigError("hardware=virtual: its workers are threads of one process, and a script is one; leave it out")
    model = getattr(script.model, "_orig_mod", script.model)  # of one that is compiled, the one that it was
    named = {"model": model, "data": script.loader.dataset, "optimizer": script.optimizer}
    choices = {
        group: Choice(name=type(each).__name__, target=f"{type(each).__module__}.{type(each).__qualname__}", knobs={})
        for group, each in named.items()
    }
    return experiment.model_copy(update={**choices, "name": script.name, "batch_size": script.loader.batch_size or 1})


def _check_kinds(script: WrappedScript) -> None:
    """Raises `ConfigError` for arguments of `wrap` of another kind."""
    kinds = {"model": nn.Module, "optimizer": Optimizer, "loader": DataLoader}
    for what, kind in kinds.items():
        if not isinstance(found := getattr(script, what), kind):
            wanted = f"{kind.__module__.partition('.')[0]}'s {kind.__name__}"
            raise ConfigError(f"wrap: the {what} is a {type(found).__name__}. Give a {wanted}.")


def _check_key(text: str) -> None:
    """Raises `ConfigError` for an override of what is not `wrap`'s. Keys that nobody has are left to `compose`."""
    key = text.lstrip("+~").partition("=")[0]
    root = key.partition(".")[0]
    if root in Experiment.model_fields and root not in MINE:
        raise ConfigError(f"{text}: a script says that itself; wrap takes {', '.join(MINE)}")
    mine = *HARDWARE, "hardware=local", "hardware=virtual"  # virtual has a refusal of its own
    if key.startswith("hardware") and key not in mine and text not in mine:
        raise ConfigError(
            f"{text}: the launcher chooses the workers of a script and their hosts; wrap takes {' and '.join(HARDWARE)}"
        )


def check_model(script: WrappedScript, sync: Sync, workers: int) -> None:
    """Refuses parameters, layers and optimizers with which workers cannot train alike. Raises `ConfigError`."""
    model = script.model
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(each):
            raise ConfigError(f"model: {name} has no shape yet. Pass one batch through the model before wrap.")
    for name, each in model.named_parameters():
        if each.is_complex():
            raise ConfigError(
                f"model: parameter {name} is {each.dtype}, and replicas sum gradients of real numbers. Keep real and "
                "imaginary parts as one more dimension (torch.view_as_complex)."
            )
    known = {id(each) for each in model.parameters()}
    for each in [each for group in script.optimizer.param_groups for each in group["params"]]:
        if each.requires_grad and id(each) not in known:
            raise ConfigError(
                f"optimizer: has a parameter of shape {list(each.shape)} that the model lacks, and no replica would "
                "have it. Register it in the model, or give wrap one nn.ModuleList of all models."
            )
    state_of(model)
    if workers == 1:
        return
    check_process_group([model])
    if isinstance(script.optimizer, SparseAdam) and sync.traits.steps_together:
        raise ConfigError(
            f"optimizer={type(script.optimizer).__name__}: takes sparse gradients alone, and the mean that "
            f"{workers} workers step with is dense. Choose Adam, or sync=local_sgd, whose workers step by themselves."
        )


def sync_of(experiment: Experiment, optimizer: Optimizer) -> Sync:
    """The sync mode, with what it is given. Raises `ConfigError` for one that a script cannot have."""
    of_groups = injected.make(experiment, ())
    with injected.naming(experiment):
        strategy = build("strategy", experiment.strategy, Strategy, (), of_groups)
        sync = build("sync", experiment.sync, Sync, (), of_groups)
        if strategy.traits.across_replicas:
            raise ConfigError(
                f"{strategy.traits.across_replicas}: swaps layers of the model. Choose paceline train, or leave it out."
            )
        if sync.servers or not sync.traits.synchronous:
            why = "has servers" if sync.servers else "lets replicas take steps at paces of their own"
            raise ConfigError(
                f"sync={experiment.sync.name}: {why}, which a script with a loop of its own cannot be. Choose a mode "
                "whose step is between backward and the optimizer, such as sync=bsp, local_sgd, diloco or gossip."
            )
        if isinstance(sync, SideBySide):
            raise ConfigError(
                f"sync={experiment.sync.name}: each replica is the expert of samples of its own, and wrap deals a "
                "script's samples anew in each epoch; paceline train takes the model as a class (docs/your_own.md)"
            )
        if poisoning.found(of_groups) is not None:
            raise ConfigError(
                f"attack={experiment.choice('attack').name}: changes the samples that a worker trains on, and a script "
                "reads its own. Choose another attack, or paceline train the model as a class (docs/your_own.md)."
            )
        if (privacy := privacy_of(sync)) is not None and privacy.of == "sample":
            raise ConfigError(
                f"privacy={experiment.choice('privacy').name}: needs the gradient of each sample, and a script "
                "has that of a batch. Choose privacy=none, or paceline train the model as a class (docs/your_own.md)."
            )
        if isinstance(aggregate := of_groups["aggregate"], Aggregator) and aggregate.copies > 1:
            raise ConfigError(
                f"aggregate={experiment.choice('aggregate').name}: several workers must train on the same samples, and "
                "a script deals its own. Choose another aggregate, or paceline train the model as a class."
            )
        compatibility.check(compatibility.Selection.in_run(experiment, of_groups, strategy, sync))
        sync.check_optimizer(optimizer)
    closure = signature(optimizer.step).parameters.get("closure")  # an optimizer of one's own may take none
    if closure is not None and closure.default is Parameter.empty:
        raise ConfigError(
            f"optimizer={experiment.optimizer.name}: calls its closure several times in a step, and workers exchange "
            "one pass. Choose an optimizer that steps with a gradient, such as SGD or AdamW."
        )
    return sync
