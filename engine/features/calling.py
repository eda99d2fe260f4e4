"""A run's callbacks, as a worker has them: they are called on the chief, and what they decide is told to all."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from ...batches import Samples, of_each
from ...comm.board import Board
from ...strategies import Strategy, Sync
from ...strategies.core.loss import Loss
from ...strategies.data_parallel import DataParallel
from ...tasks.base import DataSpec
from ...tasks.partition import Partitioner
from ..base.errors import ConfigError
from ..callbacks.at_target import AtTarget
from ..callbacks.base import Callback, EvaluationView, Metrics, Norms, StepView, watches_steps
from ..config.experiment import Experiment
from ..config.targets import build
from .robustness import names_of

Callbacks = Mapping[str, Callback]
_NAME = re.compile(r"[A-Za-z][\w.-]{0,63}")
_TAKEN = ("kind", "step", "epoch", "loss", "time", "step_time", "samples_per_second", "accuracy", "r2")
_TAKEN += (
    "consensus_distance",
    "unclipped_norm",
    "loss_scale",
    "skipped_steps",
    "weights_kept",
    "robust_accuracy",
    "target_reached",
    "backdoor_success",
)
STOP = "stop_at_target"


def make(experiment: Experiment, allowed: tuple[str, ...], metric: str) -> Callbacks:
    """`metric`: the task's. Raises `ConfigError`."""
    made: dict[str, Callback] = {}
    for name, choice in experiment.callbacks.items():
        one = build(f"callbacks.{name}", choice, Callback, allowed, {"seed": experiment.seed})
        try:
            one.check(metric, (*names_of(experiment), *made))
        except ValueError as error:
            raise ConfigError(f"callbacks.{name}.{error}") from None
        keeper = next((other for other, each in made.items() if each.keeps), None)
        if one.keeps and keeper is not None:
            raise ConfigError(f"callbacks.{name}: keeps the best weights, as callbacks.{keeper} does; leave one out")
        made[name] = one
    if experiment.stop_at_target:
        if STOP in made:
            raise ConfigError(f"callbacks.{STOP}: the name is that of {STOP}=true; choose another, or {STOP}=false")
        made[STOP] = AtTarget(metric, experiment.target_accuracy)
    return made


def key_of(name: str, callback: Callback) -> str:
    """The key of the configuration that it comes from."""
    return name if isinstance(callback, AtTarget) else f"callbacks.{name}"


def check_fit(
    callbacks: Callbacks,
    experiment: Experiment,
    strategy: Strategy,
    sync: Sync,
    partitioner: Partitioner,
    spec: DataSpec,
) -> None:
    """Refuse what this strategy, mode or partition cannot give. Raises `ConfigError`."""
    for name, callback in callbacks.items():
        if callback.stops and not sync.traits.synchronous:
            raise ConfigError(
                f"{key_of(name, callback)}: ends a run after an evaluation, and sync={experiment.sync.name} evaluates "
                "when training is over, as its workers go at their own paces; choose a mode whose replicas step "
                "together, such as sync=bsp or sync=local_sgd, or so many steps=..."
            )
        if "clients" in callback.sees and not partitioner.owns:
            raise ConfigError(
                f"callbacks.{name}: looks at what each client owns, and partition={experiment.partition.name} deals "
                "all samples anew in each epoch; choose partition=dirichlet or partition=by_label"
            )
        if "clients" in callback.sees and (spec.targets != "labels" or spec.target_shape):
            raise ConfigError(
                f"callbacks.{name}: deals the test split by its labels, and samples of data={experiment.data.name} do "
                "not have one label each; choose data that are classified, or leave it out"
            )
        if "norms" in callback.sees and partitioner.draws:
            raise ConfigError(
                f"callbacks.{name}: compares means over as many samples as batches have, and sums over those that "
                f"partition={experiment.partition.name} draws are divided by how many are expected; choose "
                "partition=shuffled, or leave it out"
            )
        if "gradients" in callback.sees and strategy.traits.needs_processes:
            raise ConfigError(
                f"callbacks.{name}: sees gradients, and strategy={experiment.strategy.name} leaves its update, and "
                "them, to a library; strategy=data_parallel shows them"
            )


def sees_norms(callbacks: Callbacks) -> list[str]:
    """Those that see norms, by name."""
    return [name for name, callback in callbacks.items() if "norms" in callback.sees]


def check_norms(callbacks: Callbacks, experiment: Experiment, strategy: Strategy, sync: Sync, replicas: int) -> None:
    """Refuse where there are no gradients at two batch sizes. Raises `ConfigError`."""
    for name in sees_norms(callbacks):
        asks = f"callbacks.{name}: compares the gradient of one replica's batch with that of all"
        if not isinstance(strategy, DataParallel):
            raise ConfigError(
                f"{asks}, and strategy={experiment.strategy.name} does not show both whole on a worker; choose "
                "strategy=data_parallel with sync=bsp"
            )
        if not sync.traits.shows_mean:
            raise ConfigError(f"{asks}, and {_hides(experiment)}")
        if replicas < 2:
            raise ConfigError(
                f"{asks}, and hardware.workers={replicas} makes them the same; choose hardware.workers=2 or more, with "
                "a smaller batch_size for the same batch of all"
            )


def _hides(experiment: Experiment) -> str:
    """What of the choices lets no worker see the plain mean of all gradients, and what to choose."""
    usual = {"compress": "none", "aggregate": "mean", "attack": "none"}
    why = {
        "compress": "sends them changed",
        "aggregate": "makes something else than their mean of them",
        "attack": "has some workers send others",
    }
    for group, plain in usual.items():
        if (chosen := experiment.choice(group).name) != plain:
            return f"{group}={chosen} {why[group]}; choose {group}={plain}"
    if (shard := experiment.sync.knobs.get("shard", "none")) != "none":
        return f"sync.shard={shard} leaves each worker a piece of the mean; choose sync.shard=none"
    return f"sync={experiment.sync.name} steps without the mean of all; choose sync=bsp"


def check_model(callbacks: Callbacks, model: nn.Module) -> None:
    """`model`: the whole, on the meta device. Raises `ConfigError`."""
    for name, callback in callbacks.items():
        try:
            callback.check_model(model)
        except ValueError as error:
            raise ConfigError(f"{key_of(name, callback)}: {error}") from None


def notes_on(callbacks: Callbacks, modelled: bool, steps: int | None) -> list[str]:
    """`steps`: of the run; None where the data must say."""
    watching = ", ".join(f"callbacks.{name}" for name, callback in callbacks.items() if watches_steps(callback))
    if not watching:
        return []
    cost = "takes no time on the modelled clock" if modelled else "is part of the step's time, for which others wait"
    late = [(name, each.every) for name, each in callbacks.items() if steps is not None and each.every > steps]
    found = [f"callbacks.{name}.every={every}: the run has {steps:,} steps, and measures none" for name, every in late]
    found += [f"{watching}: looks at each step of worker 0's replica, which {cost}"]
    if seeing := ", ".join(f"callbacks.{name}" for name in sees_norms(callbacks)):
        found.append(
            f"{seeing}: replicas tell each other how long their gradients are, by an all_reduce of 8 bytes whose time "
            "is the step's, and whose bytes are left out, as an evaluation's are"
        )
    return found


@dataclass(frozen=True)
class Verdict:
    """After an evaluation: why the run ends, or None; whether a checkpoint of this step is kept."""

    stop: str | None = None
    keep: bool = False


class Calling:
    """Built on every worker; called on the chief, but for `verdict`, which all ask."""

    def __init__(self, callbacks: Callbacks, board: Board, chief: int, synchronous: bool, strategy: str) -> None:
        self._all, self._board, self._chief, self._strategy = callbacks, board, chief, strategy
        self._own = callbacks if board.rank == chief else {}
        self._decides = synchronous and any(each.stops or each.keeps for each in callbacks.values())
        self._watching = {name: each for name, each in self._own.items() if watches_steps(each)}
        self._keeps_outputs = any("outputs" in each.sees for each in self._watching.values())
        self._outputs: list[tuple[Tensor, Samples]] = []
        self.of_step: dict[str, float] = {}  # what was measured of the last step
        self.last: dict[str, float] = {}  # of everything, the last

    @property
    def counts(self) -> bool:
        """Whether there are any, on whichever worker."""
        return bool(self._all)

    @property
    def watches(self) -> bool:
        """Whether anything here looks at each step."""
        return bool(self._watching)

    def seeing(self, loss: Loss) -> Loss:
        """`loss`, with what it is given kept for whoever sees outputs."""
        if not self._keeps_outputs:
            return loss

        @wraps(loss)
        def seen(outputs: Tensor, targets: Samples) -> Tensor:
            if not outputs.is_meta:
                own = of_each(targets, torch.clone)  # the loss may change what it is given
                self._outputs.append((outputs.detach().clone(), own))
            return loss(outputs, targets)

        return seen

    def each_step(
        self,
        step: int,
        epoch: float,
        loss: float,
        parameters: Mapping[str, torch.nn.Parameter],
        norms: Norms | None = None,
    ) -> None:
        """`step`: steps made, with this one."""
        outputs, targets = zip(*self._outputs, strict=True) if self._outputs else ((), ())
        view = StepView(step, epoch, loss, parameters, outputs, targets, norms)
        self.of_step = {}
        for name, callback in self._watching.items():
            self._check_seen(name, callback, view)
            with torch.no_grad():
                told = callback.each_step(view)
            self.of_step |= _numbers(name, told, self.of_step)
        self._outputs.clear()
        self.last |= self.of_step

    def _check_seen(self, name: str, callback: Callback, view: StepView) -> None:
        """A callback that was given nothing must not measure nothing. Raises `ConfigError`."""
        if "outputs" in callback.sees and not view.outputs:
            raise ConfigError(
                f"callbacks.{name}: sees outputs, and strategy={self._strategy} computes its loss without showing "
                "them; strategy=data_parallel shows them"
            )
        gradients = view.gradients.values() if "gradients" in callback.sees else ()
        if "gradients" in callback.sees and (not gradients or any(type(each) is not Tensor for each in gradients)):
            raise ConfigError(
                f"callbacks.{name}: sees gradients, and none are left whole after a step of strategy={self._strategy}; "
                "strategy=data_parallel with sync=bsp leaves them"
            )

    def each_evaluation(self, view: EvaluationView) -> dict[str, float]:
        """What was measured."""
        found: dict[str, float] = {}
        values = dict(view.values)
        for name, callback in self._own.items():
            seen = replace(view, values=values)
            with torch.no_grad():
                told = callback.each_evaluation(seen)
            new = _numbers(name, told, found)
            found |= new
            values |= new
        self.last |= found
        return found

    @property
    def found_best(self) -> bool:
        """Whether the weights that were evaluated last are to be kept."""
        return any(callback.keeps and callback.is_best() for callback in self._own.values())

    def verdict(self, done: int) -> Verdict:
        """The same on all workers that step together, which all ask after the evaluation at step `done`."""
        if not self._decides:
            return Verdict()
        key = f"callbacks/{done}"
        if self._board.rank == self._chief:
            told = {key_of(name, each): each.reason_to_stop() for name, each in self._own.items() if each.stops}
            stop = next((f"{key}: {reason}" for key, reason in told.items() if reason), None)
            self._board.post(key, json.dumps({"stop": stop, "keep": self.found_best}))
        return Verdict(**json.loads(self._board.read(key, self._chief)))

    def state(self) -> dict[str, Any]:
        """Of the chief's, for a checkpoint. Raises TypeError where it is not JSON."""
        states = {name: callback.state_dict() for name, callback in self._own.items()}
        for name, state in states.items():
            try:
                json.dumps(state)
            except (TypeError, ValueError) as error:
                raise TypeError(f"callbacks.{name}: state_dict() must be as JSON has it ({error})") from error
        return states

    def load(self, states: Mapping[str, Any]) -> None:
        for name, callback in self._own.items():
            if name in states:
                callback.load_state_dict(states[name])


def _numbers(callback: str, told: Metrics, others: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    """Raises `ConfigError` for a name that is taken, or a value that is no number."""
    if not isinstance(told, Mapping):
        raise ConfigError(
            f"callbacks.{callback}: gave a {type(told).__name__}; metrics are a mapping of names to numbers"
        )
    found: dict[str, float] = {}
    for name, value in told.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"callbacks.{callback}: metric {name!r}: a name is 1 to 64 letters, digits and ._-")
        if name in _TAKEN or name in others:
            raise ConfigError(f"callbacks.{callback}: metric {name}: something else is recorded under this name")
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(
                f"callbacks.{callback}: metric {name}: must be one number, and is a {_kind(value)}"
            ) from None
    return found


def _kind(value: object) -> str:
    return f"tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
