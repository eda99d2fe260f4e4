"""A run's callbacks, as a worker has them: they are called on the chief, and what they decide is told to all."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Self

import torch
from torch import Tensor, nn

from ...batches import Samples, of_each
from ...comm.key_values import KeyValues
from ...conf.counted import counted
from ...conf.errors import ConfigError
from ...strategies import Strategy, Sync
from ...strategies.core.clip import Counted
from ...strategies.core.loss import Loss
from ...strategies.data_parallel import DataParallel
from ...tasks.base import DataSpec
from ...tasks.clients import Clients
from ...tasks.losses.metrics import Metric
from ...tasks.partition import Partitioner
from ..callbacks.at_target import AtTarget
from ..callbacks.base import Callback, EvaluationView, Metrics, Norms, StepView, measures, watches_steps
from ..callbacks.best import Best
from ..callbacks.early_stop import EarlyStop
from ..config.experiment import Experiment
from ..config.targets import build
from .feature import Chosen, Context, Decides, EvaluationVerdict, Feature, Hooks, Known, Parts
from .gradient_norms import GradientNorms
from .robustness import names_of

Callbacks = Mapping[str, Callback]
LAST = ""  # stands in a checkpoint beside the callbacks' names, which are longer
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


def make(experiment: Experiment, allowed: tuple[str, ...], of_task: Metric) -> Callbacks:
    """Raises `ConfigError`."""
    metric = of_task.name
    made: dict[str, Callback] = {}
    for name, choice in experiment.callbacks.items():
        one = build(f"callbacks.{name}", choice, Callback, allowed, {"seed": experiment.seed})
        try:
            one.check(metric, (*names_of(experiment), *_measuring(made)))
        except ValueError as error:
            raise ConfigError(f"callbacks.{name}.{error}") from None
        if isinstance(one, EarlyStop | Best) and one.seen.takes_larger(metric) and not of_task.larger_is_better:
            raise ConfigError(f"callbacks.{name}.mode=auto: a smaller {metric} is better. Choose mode=min.")
        keeper = next((other for other, each in made.items() if each.keeps), None)
        if one.keeps and keeper is not None:
            raise ConfigError(f"callbacks.{name}: keeps the best weights, as callbacks.{keeper} does; leave one out")
        made[name] = one
    if experiment.stop_at_target:
        if STOP in made:
            raise ConfigError(f"callbacks.{STOP}: the name is that of {STOP}=true. Choose another, or {STOP}=false.")
        if not of_task.larger_is_better:
            raise ConfigError(
                f"{STOP}=true: a smaller {metric} is better, and no run reaches target_accuracy with it. Choose "
                "callbacks=[early_stop]."
            )
        made[STOP] = AtTarget(of_task, experiment.target_accuracy)
    return made


def _measuring(callbacks: Callbacks) -> list[str]:
    return [name for name, each in callbacks.items() if measures(each) and not isinstance(each, EarlyStop)]


@dataclass(frozen=True)
class Called(Feature):
    """The run's callbacks, by name."""

    callbacks: Callbacks
    key = "callbacks"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        made = make(chosen.experiment, chosen.allowed, chosen.task.metric)
        return cls(made) if made else None

    @classmethod
    def unverified(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        for name, choice in experiment.callbacks.items():
            if "norms" in build(f"callbacks.{name}", choice, Callback, allowed, {"seed": 0}).sees:
                return (
                    f"callbacks.{name}: compares gradients of several replicas and changes no training, so that there "
                    "is nothing to verify, and most ways have none to show; leave it out"
                )
        return ""

    def check(self, chosen: Chosen) -> None:
        experiment, strategy, sync, spec = chosen.experiment, chosen.strategy, chosen.sync, chosen.data.spec
        check_fit(self.callbacks, experiment, strategy, sync, chosen.partitioner, spec)
        check_gradients(self.callbacks, experiment, sync, chosen.layout.replicas)
        check_norms(self.callbacks, experiment, strategy, sync, chosen.layout.replicas)

    def check_model(self, chosen: Chosen, model: nn.Module) -> None:
        check_model(self.callbacks, model)

    def hooks(self, context: Context) -> Hooks:
        parts = context.parts
        calling = Calling(
            self.callbacks,
            context.comm.key_values,
            parts.layout.chief,
            parts.sync.traits.synchronous,
            parts.experiment.strategy.name,
        )
        return calling.within(context)

    def notes(self, known: Known) -> list[str]:
        return [*notes_on(self.callbacks, known.parts.fabric.modelled, known.steps), *self._on_parts(known.parts)]

    def _on_parts(self, parts: Parts) -> list[str]:
        """Says which part of a gradient is seen where a replica is several workers."""
        layout = parts.layout
        return [
            f"callbacks.{name}: sees the gradient of the part of the model that worker {layout.chief} holds, which is "
            f"one of {layout.parts}"
            for name, callback in self.callbacks.items()
            if "gradients" in callback.sees and layout.parts > 1
        ]


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
                "when training is over, as its workers go at their own paces. Choose a mode whose replicas step "
                "together, such as sync=bsp or sync=local_sgd, or so many steps=..."
            )
        if "clients" in callback.sees and not partitioner.owns:
            raise ConfigError(
                f"callbacks.{name}: looks at what each client owns, and partition={experiment.partition.name} deals "
                "all samples anew in each epoch. Choose partition=dirichlet or partition=by_label."
            )
        if "clients" in callback.sees and (spec.targets != "labels" or spec.target_shape):
            raise ConfigError(
                f"callbacks.{name}: deals the test split by its labels, and samples of data={experiment.data.name} do "
                "not have one label each. Choose data that are classified, or leave it out."
            )
        if "norms" in callback.sees and partitioner.draws:
            raise ConfigError(
                f"callbacks.{name}: compares means over as many samples as batches have, and sums over those that "
                f"partition={experiment.partition.name} draws are divided by how many are expected. Choose "
                "partition=shuffled, or leave it out."
            )
        if "gradients" in callback.sees and strategy.traits.needs_processes:
            raise ConfigError(
                f"callbacks.{name}: sees gradients, and strategy={experiment.strategy.name} leaves its update, and "
                "them, to a library; strategy=data_parallel shows them"
            )


def check_gradients(callbacks: Callbacks, experiment: Experiment, sync: Sync, replicas: int) -> None:
    """Refuses callbacks that see gradients of which each replica keeps a part. Raises `ConfigError`."""
    seeing = next((name for name, callback in callbacks.items() if "gradients" in callback.sees), None)
    if seeing is not None and sync.traits.keeps_pieces and replicas > 1:
        raise ConfigError(
            f"callbacks.{seeing}: sees gradients, and sync.shard={experiment.sync.knobs['shard']} leaves each replica "
            "a part of them. Choose sync.shard=none, or leave it out."
        )


def sees_norms(callbacks: Callbacks) -> list[str]:
    """Returns the names of the callbacks that see norms."""
    return [name for name, callback in callbacks.items() if "norms" in callback.sees]


def check_norms(callbacks: Callbacks, experiment: Experiment, strategy: Strategy, sync: Sync, replicas: int) -> None:
    """Refuse where there are no gradients at two batch sizes. Raises `ConfigError`."""
    for name in sees_norms(callbacks):
        asks = f"callbacks.{name}: compares the gradient of one replica's batch with that of all"
        if not isinstance(strategy, DataParallel):
            raise ConfigError(
                f"{asks}, and strategy={experiment.strategy.name} does not show both whole on a worker. Choose "
                "strategy=data_parallel with sync=bsp."
            )
        if not sync.traits.shows_mean:
            raise ConfigError(f"{asks}, and {_hides(experiment)}")
        if replicas < 2:
            raise ConfigError(
                f"{asks}, and hardware.workers={replicas} makes them the same. Choose hardware.workers=2 or more, with "
                "a smaller batch_size for the same batch of all."
            )


def _hides(experiment: Experiment) -> str:
    """Says which choice keeps workers from seeing the plain mean of all gradients, and what to choose."""
    usual = {"compress": "none", "aggregate": "mean", "attack": "none"}
    why = {
        "compress": "sends them changed",
        "aggregate": "makes something else than their mean of them",
        "attack": "has some workers send others",
    }
    for group, plain in usual.items():
        if (chosen := experiment.choice(group).name) != plain:
            return f"{group}={chosen} {why[group]}. Choose {group}={plain}."
    if (shard := experiment.sync.knobs.get("shard", "none")) != "none":
        return f"sync.shard={shard} leaves each worker a piece of the mean. Choose sync.shard=none."
    return f"sync={experiment.sync.name} steps without the mean of all. Choose sync=bsp."


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
    found = [
        f"callbacks.{name}.every={each.every}: the run has {counted(steps, 'step')}, and measures none"
        for name, each in callbacks.items()
        if steps is not None and each.every > steps
    ]
    found += [f"{watching}: looks at each step of worker 0's replica, which {cost}"]
    if seeing := ", ".join(f"callbacks.{name}" for name in sees_norms(callbacks)):
        found.append(
            f"{seeing}: replicas tell each other how long their gradients are, by an all_reduce of 8 bytes whose time "
            "is the step's, and whose bytes are left out, as an evaluation's are"
        )
    return found


class Calling(Decides):
    """Calls the callbacks on the chief. All workers ask for the `verdict`."""

    def __init__(
        self, callbacks: Callbacks, key_values: KeyValues, chief: int, synchronous: bool, strategy: str
    ) -> None:
        self._all, self._key_values, self._chief, self._strategy = callbacks, key_values, chief, strategy
        self._own = callbacks if key_values.rank == chief else {}
        self._decides = synchronous and any(each.stops or each.keeps for each in callbacks.values())
        self.counts = synchronous
        self._watching = {name: each for name, each in self._own.items() if watches_steps(each)}
        self._keeps_outputs = any("outputs" in each.sees for each in self._watching.values())
        self._outputs: list[tuple[Tensor, Samples]] = []
        self._context: Context | None = None
        self._norms: GradientNorms | None = None
        self._parameters: Callable[[], Mapping[str, nn.Parameter]] = dict
        self._of_step: dict[str, float] = {}  # what was measured of the last step
        self.last: dict[str, float] = {}  # of everything, the last

    def within(self, context: Context) -> Self:
        """Measures what callbacks see of this worker's training."""
        self._context = context
        return self

    def loss(self, plain: Loss) -> Loss:
        """Returns `plain`; what it is given is kept for callbacks that see outputs."""
        if not self._keeps_outputs:
            return plain

        @wraps(plain)
        def seen(outputs: Tensor, targets: Samples) -> Tensor:
            if not outputs.is_meta:
                own = of_each(targets, torch.clone)  # the loss may change what it is given
                self._outputs.append((outputs.detach().clone(), own))
            return plain(outputs, targets)

        return seen

    def begin(self, module: nn.Module, counted: Counted | None) -> None:
        assert self._context is not None
        parts = self._context.parts
        self._parameters = lambda: parts.sync.parameters
        if every := [each.every for each in self._all.values() if "norms" in each.sees]:
            self._norms = GradientNorms(parts.sync, parts.deal(), every)

    def follow(self, before: Hooks) -> None:
        assert isinstance(before, Calling)
        self.last = before.last

    def after_backward(self, step: int) -> None:
        if self._norms is not None:
            self._norms.after_backward(step)

    def uses_gradients(self) -> bool:
        return self._norms is not None

    def gradients(self) -> None:
        assert self._norms is not None
        self._norms.gradients()

    def after_update(self, step: int, took: bool) -> None:
        if self._norms is not None and took:
            self._norms.after_update(step)

    def after_step(self, done: int, loss: Tensor) -> None:
        if self._watching:
            assert self._context is not None
            epoch = done / self._context.parts.sync.setting.steps_per_epoch
            norms = None if self._norms is None else self._norms.last
            self.each_step(done, epoch, loss.item(), self._parameters(), norms)

    def each_step(
        self,
        step: int,
        epoch: float,
        loss: float,
        parameters: Mapping[str, torch.nn.Parameter],
        norms: Norms | None = None,
    ) -> None:
        """Shows a step to the callbacks that watch steps. `step`: steps made, with this one."""
        outputs, targets = zip(*self._outputs, strict=True) if self._outputs else ((), ())
        view = StepView(step, epoch, loss, parameters, outputs, targets, norms)
        self._of_step = {}
        for name, callback in self._watching.items():
            self._check_seen(name, callback, view)
            with torch.no_grad():
                told = callback.each_step(view)
            self._of_step |= _numbers(name, told, self._of_step)
        self._outputs.clear()
        self.last |= self._of_step

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

    def numbers(self) -> Mapping[str, float]:
        return self._of_step

    def evaluated(self, view: EvaluationView) -> Mapping[str, float]:
        seen = any("clients" in each.sees for each in self._own.values())
        return self.each_evaluation(replace(view, clients=self._clients()) if seen else view)

    def _clients(self) -> Clients:
        assert self._context is not None
        (train, test), dealt = self._context.parts.load(), self._context.parts.deal()
        return Clients(train, test, [dealt.owned(owner) for owner in range(dealt.owners)])

    def each_evaluation(self, view: EvaluationView) -> dict[str, float]:
        """Shows evaluated weights to the callbacks; returns what was measured."""
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

    def metrics(self) -> Mapping[str, float]:
        return self.last

    def found_best(self) -> bool:
        return any(callback.keeps and callback.is_best() for callback in self._own.values())

    def verdict(self, done: int) -> EvaluationVerdict:
        if not self._decides:
            return EvaluationVerdict()
        key = f"callbacks/{done}"
        if self._key_values.rank == self._chief:
            told = {key_of(name, each): each.reason_to_stop() for name, each in self._own.items() if each.stops}
            stop = next((f"{key}: {reason}" for key, reason in told.items() if reason), None)
            self._key_values.post(key, json.dumps({"stop": stop, "keep": self.found_best()}))
        return EvaluationVerdict(**json.loads(self._key_values.read(key, self._chief)))

    def manifest(self) -> dict[str, Any]:
        """Returns the callbacks' state, and what was measured last, on the chief. Raises TypeError if it is no JSON."""
        states = {name: callback.state_dict() for name, callback in self._own.items()}
        for name, state in states.items():
            try:
                json.dumps(state)
            except (TypeError, ValueError) as error:
                raise TypeError(f"callbacks.{name}: state_dict() must be as JSON has it ({error})") from error
        return {**states, LAST: self.last} if self.last else states

    def load_manifest(self, state: Mapping[str, Any]) -> None:
        self.last = dict(state.get(LAST, {})) if self._own else {}
        for name, callback in self._own.items():
            if name in state:
                callback.load_state_dict(state[name])


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
