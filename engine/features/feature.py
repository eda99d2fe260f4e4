"""The interface of everything that acts on a run's steps, batches, losses, evaluated weights or checkpoints.

A `Feature` belongs to the run: it checks the choices, changes the model and states what it costs. Its `Hooks` belong to
one worker: training calls them at each event. A feature that changes the model is a `ModelFeature` (models.py).
order.py lists the features in the order in which they act. To add one, see CONTRIBUTING.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...batches import Samples
from ...comm import Comm
from ...cost.kernels import Kernel
from ...strategies import Batch, Strategy, Sync
from ...strategies.core.accumulation import Accumulation
from ...strategies.core.clip import Counted
from ...strategies.core.cost import Cost, Memory, Traffic, World
from ...strategies.core.loss import Loss
from ...strategies.core.precision import Precision
from ...strategies.core.schedule import Schedule
from ...strategies.core.terms import Need
from ...tasks.base import Data, Readable, Taken
from ...tasks.losses.base import Task
from ...tasks.partition import Partition, Partitioner
from ...tracking.run_directory import RunDirectory
from ..callbacks.base import EvaluationView
from ..config.experiment import Experiment
from ..fabrics.compute import ComputeModel, ModelledCompute, RealCompute
from ..fabrics.failures import Failures
from ..fabrics.kinds import FabricKind
from ..fabrics.layout import Role, RunLayout
from ..fabrics.stragglers import Stragglers

Injected = dict[str, object]  # by group, what a strategy and a sync mode are given
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
State = dict[str, Tensor]  # tensors by name


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The objects that an experiment names, before its model is built. Workers of one process share `load`."""

    experiment: Experiment
    allowed: tuple[str, ...]  # the user's own modules
    data: Data
    task: Task
    load: Callable[[], tuple[Readable, Readable]]  # the splits to train and to test on
    partitioner: Partitioner
    schedule: Schedule
    stragglers: Stragglers
    failures: Failures
    fabric: FabricKind
    of_groups: Injected
    strategy: Strategy
    sync: Sync
    accumulation: Accumulation  # of a step; each worker has its own
    layout: RunLayout


@dataclass(frozen=True, kw_only=True)
class Parts(Chosen):
    """All that one worker works with. Workers of one process share `deal` and `compute`."""

    deal: Callable[[], Partition]
    compute: ComputeModel | None  # where it is modelled
    make_pair: Callable[[], tuple[Strategy, Sync]]  # for another worker of this process
    model: nn.Module  # the whole, on the meta device
    modules: list[nn.Module]  # what the strategy cuts it into; in training they compute in `precision`
    make_model: Callable[[], nn.Module]  # with what features make of it
    make_optimizer: MakeOptimizer
    precision: Precision  # of passes; float32 where the strategy rounds weights itself
    features: tuple["Feature", ...]  # in the order in which they act
    following: "Parts | None"  # with the model that this run goes on with; see phases.py


@dataclass(frozen=True)
class Known:
    """The facts of a run that a plan knows."""

    parts: Parts
    samples: int | None  # to train on; None where the data must say, as of the steps
    steps_per_epoch: int | None
    training: int | None  # steps of one training
    steps: int | None  # of the run


@dataclass(frozen=True)
class Context:
    """A worker that trains, before its strategy and its sync mode are prepared."""

    parts: Parts
    comm: Comm  # of all workers and servers
    workers: Comm  # of all workers
    of_replica: Comm  # of the workers of its replica
    role: Role
    device: torch.device
    compute: ModelledCompute | RealCompute

    @property
    def is_chief(self) -> bool:
        return self.comm.rank == self.parts.layout.chief


class Hooks:
    """Acts for a feature on one worker. Training calls each method at its event; none must be overridden.

    `key`: the name under which a checkpoint keeps `state_dict`.
    """

    key: ClassVar[str] = ""

    def loss(self, plain: Loss) -> Loss:
        """Returns the loss that is trained, made of `plain`. Called once, before the strategy is prepared."""
        return plain

    def begin(self, module: nn.Module, counted: Counted | None) -> None:
        """Strategy and sync mode are prepared; the state of a checkpoint is not yet loaded.

        Args:
            module: this worker's part of the model.
            counted: what this worker counts of a gradient's norm, where a replica is several workers.
        """

    def follow(self, before: "Hooks") -> None:
        """Takes over from this feature's hooks of the phase before (phases.py). Called after `begin`."""

    # -- a step, in this order

    def acts_before(self, step: int) -> bool:
        """Returns whether `before_step` has anything to do before this step, counted from 0. Alike on all workers."""
        return True

    def before_step(self, step: int) -> None:
        """Nothing is under way. Weights may be changed. Neither the time nor the bytes are the step's."""

    def samples(self, taken: Taken, step: int) -> Taken:
        """Returns the replica's samples, on the host, as they are to be used."""
        return taken

    def begin_step(self, step: int) -> None:
        """The sync mode has begun the step: a worker that steps by itself has fetched weights."""

    def batch(self, batch: Batch) -> Batch:
        """Returns the batch, on the device, as it is to be learnt. Its time is the step's compute time."""
        return batch

    def after_backward(self, step: int) -> None:
        """The backward passes are over. Gradients may be on their way to other replicas already: change none here."""

    def gradients(self) -> None:
        """The sync mode steps with the gradients that the parameters have now, or pushes them; clipping comes next.

        They are the mean over the replicas where the mode makes one first. Once a step. They may be changed in place.
        The feature `needs` SHOWN_GRADIENTS, so that the plan refuses a mode that shows none. A run whose mode shows
        none all the same ends in its first step.
        """

    def uses_gradients(self) -> bool:
        """Returns whether `gradients` has anything to do in this run. Called after `begin`."""
        return True

    def takes_step(self) -> bool:
        """Returns False where the step is to be left out. Alike on all workers that step together."""
        return True

    def after_update(self, step: int, took: bool) -> None:
        """The sync mode has updated the weights. `took`: the step was not left out."""

    def after_step(self, done: int, loss: Tensor) -> None:
        """`done` steps are made. Only on workers that have the replica's `loss`. Its time is the step's."""

    def numbers(self) -> Mapping[str, float]:
        """Returns what a record of a step tells, by name."""
        return {}

    # -- evaluations and the end

    def weights(self, trained: Callable[[], State]) -> State:
        """Returns this part's weights to evaluate. `trained`: asks the sync mode for its consensus."""
        return trained()

    def whole(self, state: State, judged: nn.Module) -> State:
        """Returns the whole model's weights to evaluate. On the chief alone; `judged` is a model to try them in."""
        return state

    def evaluated(self, view: EvaluationView) -> Mapping[str, float]:
        """Returns what was measured of weights that have just been evaluated, by name. On the chief alone."""
        return {}

    def finish(self, done: int) -> None:
        """Training is over after `done` steps, and the sync mode has finished."""

    def conclude(self, judged: nn.Module, device: torch.device, directory: RunDirectory) -> None:
        """The run came to its end; `judged` holds its last evaluated weights. On the chief alone."""

    # -- what is kept and told

    def before_saving(self, done: int) -> None:
        """A checkpoint of step `done` comes next. Nothing is under way. On all workers."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps beside the part's weights, for `key`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Weights and the sync mode's state are loaded by then."""

    def manifest(self) -> dict[str, Any]:
        """Returns what a checkpoint's manifest keeps, as JSON has it. On the chief alone."""
        return {}

    def load_manifest(self, state: Mapping[str, Any]) -> None:
        """Takes back what `manifest` gave. On all workers, before `begin`."""

    def tensors(self) -> Mapping[str, Sequence[Tensor]]:
        """Returns what it holds, by kind of memory."""
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Returns what a summary tells of the last evaluation, by name. On the chief alone."""
        return {}

    def summary(self, done: int) -> Mapping[str, float]:
        """Returns what else a summary tells, by name. On the chief alone."""
        return {}

    def overall(self, told: Sequence[Mapping[str, float]], seconds: float) -> Mapping[str, float]:
        """Returns what a summary tells of all workers, by name. On the chief alone.

        Args:
            told: by all that trained.
            seconds: of training, of all of these together.
        """
        return {}

    def told(self) -> Mapping[str, float]:
        """Returns what this worker tells the chief at the end, by name."""
        return {}

    def failure(self, done: int, told: Sequence[Mapping[str, float]]) -> str | None:
        """Returns why a run that made all its steps failed. On the chief alone. `told`: by all that trained."""
        return None


class Decides(Hooks, ABC):
    """Hooks that may end a run, or have weights kept, after an evaluation."""

    counts: bool  # evaluations; the last one is then made before the checkpoint that has its state

    @abstractmethod
    def verdict(self, done: int) -> "EvaluationVerdict":
        """Returns the same on all workers that step together, which all ask after the evaluation at step `done`."""

    @abstractmethod
    def found_best(self) -> bool:
        """Returns whether the weights that were evaluated last are to be kept. On the chief alone."""


@dataclass(frozen=True)
class EvaluationVerdict:
    """Says why the run ends after an evaluation, or None, and whether a checkpoint of this step is kept."""

    stop: str | None = None
    keep: bool = False


class Stated(Protocol):
    """A statement of a feature in a plan."""

    def in_words(self) -> str: ...

    def as_dict(self) -> dict[str, Any]: ...


class Feature:
    """Does to a run what one choice asks for. Frozen, and shared by the workers of a process.

    `key`: of the configuration. `unpredicted`: why the time of a step with it is not modelled. `uses`: groups of what
    strategies and sync modes are given whose choice it has a use for itself.
    """

    key: ClassVar[str]
    unpredicted: str = ""
    uses: tuple[str, ...] = ()

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        """Returns the feature that is chosen; None where the choice is none. Raises `ConfigError`."""
        raise NotImplementedError

    @classmethod
    def unverified(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        """Returns why `paceline verify` has no serial training to hold a run with it to; "" where it has."""
        return ""

    @classmethod
    def unmodelled(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        """Returns what it does that closed forms of transformers (cost/) leave out; "" where that is nothing."""
        return ""

    # -- refusals: each raises `ConfigError`

    def needs(self, chosen: Chosen) -> Sequence[Need]:
        """Returns what it needs of the strategy, the sync mode and what these are given."""
        return ()

    def check(self, chosen: Chosen) -> None:
        """Refuses what the choices do not allow, other than by `needs`."""

    def check_model(self, chosen: Chosen, model: nn.Module) -> None:
        """Refuses what the whole model, on the meta device, does not allow."""

    def check_parts(self, parts: Parts) -> None:
        """Refuses what the parts of the model do not allow."""

    def check_steps(self, known: Known) -> None:
        """Refuses what a run of so many steps does not allow."""

    def check_files(self) -> None:
        """Refuses files that are not what they are said to be. Called before a run, and not by its workers."""

    def resolved(self, chosen: Chosen) -> Experiment | None:
        """Returns the experiment with a value that follows from the others; None where nothing follows."""
        return None

    # -- what it acts on

    def set_up(self, parts: Parts, comm: Comm) -> None:
        """Configures the strategy and the sync mode of one worker or server before they are prepared. All call."""

    def initialise(self, parts: Parts, model: nn.Module) -> None:
        """Gives a whole model, just drawn, the weights that it begins with."""

    def loss(self, plain: Loss) -> Loss:
        """Returns the loss that is trained, made of `plain`, for a rehearsal of its passes."""
        return plain

    def targets(self, inputs: Samples, targets: Samples) -> Samples:
        """Returns the targets that the loss takes, on the meta device."""
        return targets

    def hooks(self, context: Context) -> Hooks | None:
        """Returns what it does on a worker that trains; None where that is nothing."""
        return None

    # -- what it costs

    def memory(self, module: nn.Module, trained: Sequence[Tensor]) -> Memory:
        """Returns the bytes that a worker of this part holds for it, by kind."""
        return {}

    def activations(self, parts: Parts, inputs: Samples, targets: Samples) -> int:
        """Returns the bytes that passes of its own keep for backward, on a worker of the first part."""
        return 0

    def cost(self, parts: Parts, module: nn.Module, world: World, cost: Cost) -> Cost:
        """Returns what the sync mode sends of this part, where `cost` is what it states."""
        return cost

    def sums(self, parts: Parts) -> "Sums":
        """Returns what workers sum in each step to agree on something."""
        return Sums()

    def kernels(self, trained: Sequence[Tensor]) -> tuple[Kernel, ...]:
        """Returns what it computes in a step, beside the optimizer."""
        return ()

    def stated(self, known: Known) -> Stated | None:
        """Returns what a plan states of it."""
        return None

    def notes(self, known: Known) -> list[str]:
        """Returns what a run does other than one may expect, a sentence each."""
        return []


@dataclass(frozen=True)
class Sums:
    """Bytes of a worker in each step: among the workers of its replica, and among all workers."""

    within: Traffic | None = None
    among_all: Traffic | None = None
