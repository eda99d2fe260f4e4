"""The interface of a callback: the values that it sees, and the answers that it may give.

Each callback has one object in a run, on the chief: the worker of replica 0 that has the loss. So its counts count
once, and if it ends the run, all workers leave before the same step.
"""

import inspect
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from ...batches import Samples
from ...strategies.core.loss import Loss
from ...tasks.base import Readable
from ...tasks.clients import Clients

Number = float | int | Tensor  # [] of any dtype
Metrics = Mapping[str, Number]
Sees = Literal["outputs", "gradients", "norms", "clients"]


@dataclass(frozen=True)
class Norms:
    """Squares of how long gradients are at two batch sizes, before they are clipped."""

    small: float  # the mean over replicas of |g_j|^2, of their own gradients
    batch_small: float  # samples of one of these: the harmonic mean, where batches are uneven
    big: float  # |g|^2 of the mean over the samples of all
    batch_big: int


@dataclass(frozen=True)
class StepView:
    """A step that has just been made. Nothing here may be changed.

    `loss`: of replica 0's batch. `outputs`, `targets`: of each of its micro-batches, for one that `sees` outputs.
    `parameters`: those that this worker trains, by name (of a replica over several workers its own part), after the
    update. `gradients`: theirs, for one that `sees` gradients: as the sync mode leaves them, which with bsp is the mean
    over replicas and with modes whose replicas step on their own is replica 0's own. `norms`: for one that `sees`
    norms, in each step that its `every` divides; None elsewhere, and where fewer than two replicas had samples.
    """

    step: int  # steps made, with this one
    epoch: float
    loss: float
    parameters: Mapping[str, nn.Parameter]
    outputs: Sequence[Tensor] = ()
    targets: Sequence[Samples] = ()
    norms: Norms | None = None

    @property
    def gradients(self) -> dict[str, Tensor]:
        return {name: each.grad for name, each in self.parameters.items() if each.grad is not None}


@dataclass(frozen=True)
class EvaluationView:
    """Weights that have just been evaluated. Nothing here may be changed.

    Of an asynchronous mode it is told after training, in the order of the steps. `values`: the metric by its name
    (accuracy, r2), the loss, and what callbacks before this one measured. `model`: the whole, in evaluation mode, with
    these weights, on `device`; no gradients are recorded. `test`: the split that it was judged on, on the host.
    `judge`: the metric and the loss of another model, one that was made of this one and is on that device, on it or on
    other samples. `clients`: what each replica owns, for one that `sees` clients; `loss`: that is trained.
    """

    step: int
    epoch: float
    seconds: float  # of training
    values: Mapping[str, float]
    model: nn.Module
    test: Readable
    device: torch.device
    judge: Callable[..., Mapping[str, float]]  # (model, device, split of other samples)
    clients: Clients | None = None
    loss: Loss | None = None


class Callback(ABC):
    """Derive a class, and name it in a YAML of the group `callbacks`. Constructor parameters are its knobs.

    Metrics are recorded under their names: finite or not, one number each. What `each_step` takes is part of the step's
    time, on the worker that it is on; on a virtual cluster it takes none. `sees`: what of a step is kept for it, which
    takes memory. `stops`: it may end the run; `keeps`: it may have a checkpoint kept. An exception ends the run.
    """

    knobs: dict[str, Any]  # that it was built with, by name: workers build it anew
    sees: frozenset[Sees] = frozenset()
    stops: bool = False
    keeps: bool = False
    every: int = 1  # of one that sees norms: the steps from one that they are measured in to the next

    def __new__(cls, *args: Any, **knobs: Any) -> Self:
        made = super().__new__(cls)
        given = inspect.signature(cls.__init__).bind(made, *args, **knobs).arguments  # raises TypeError, as a call does
        made.knobs = {name: value for name, value in list(given.items())[1:] if name not in ("args", "kwargs")}
        return made

    def check(self, metric: str, others: Sequence[str]) -> None:
        """Checks the callback before anything runs. `metric`: the task's; `others`: the callbacks before.

        Raises ValueError, whose message begins with the knob: `metric=f1: must be ...`.
        """

    def check_model(self, model: nn.Module) -> None:
        """Checks the model before anything runs. `model`: the whole, on the meta device. Raises ValueError."""

    def each_step(self, view: StepView) -> Metrics:
        return {}

    def each_evaluation(self, view: EvaluationView) -> Metrics:
        return {}

    def reason_to_stop(self) -> str | None:
        """Returns after `each_evaluation`, for a callback that `stops`, why the run ends now; None: it goes on."""
        return None

    def is_best(self) -> bool:
        """Returns after `each_evaluation`, for a callback that `keeps`, whether these are the weights to keep."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that a resumed run needs, as JSON has it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned."""


def watches_steps(callback: Callback) -> bool:
    return type(callback).each_step is not Callback.each_step


def measures(callback: Callback) -> bool:
    """Returns whether it may give metrics of an evaluation, by which others decide."""
    return type(callback).each_evaluation is not Callback.each_evaluation
