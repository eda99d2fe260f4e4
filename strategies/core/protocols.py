"""Interfaces of a few strategies or sync modes each. The engine asks whether a choice has one.

Where most choices do the same, a function beside the interface does it for them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from ...batches import Samples
from .cost import Memory, Traffic
from .held import Held
from .privacy import Privacy
from .schedule import scaled
from .state import State
from .strategy import Strategy
from .sync import Sync

SMALLER_RATE = "a smaller optimizer.lr may help"

# -- of sync modes and strategies


@runtime_checkable
class Shown(Protocol):
    """A mode, a strategy or a part of one that has more to show in a picture of a run than clocks and weights."""

    def shows(self) -> Mapping[str, Held]:
        """Returns what this worker or server holds now, by name. Called only while a picture is made.

        A worker is asked when its first step begins and at the end of each step, a server after it changed the weights
        (`made_at`). The name clock stands for the number of the worker's steps.
        """
        ...


def shown_by(part: object) -> Mapping[str, Held]:
    """Returns what a part of a worker or a server shows; {} where it has nothing to show."""
    return part.shows() if isinstance(part, Shown) else {}


# -- of sync modes


@runtime_checkable
class Drains(Protocol):
    """A mode of which others need something when a worker is through with its steps, and they may not be."""

    def drain(self) -> None:
        """Hands over what the others can use, or hears them out, before the worker waits for anybody."""
        ...


def end_steps(sync: Sync) -> None:
    """Tells a mode that the worker's last step is over."""
    if isinstance(sync, Drains):
        sync.drain()


@runtime_checkable
class ChecksModel(Protocol):
    """A mode with knobs that need something of the model."""

    def check_model(self, parts: Sequence[Sequence[Tensor]]) -> None:
        """Raises `ConfigError` where nothing in the model makes use of a knob.

        `parts`: what is trained of each part of a replica.
        """
        ...


@runtime_checkable
class Composite(Protocol):
    """A mode that is made of others, which are given the same choices (compress, clip, ...)."""

    @property
    def modes(self) -> Mapping[str, object]:
        """Returns the modes by name."""
        ...


@runtime_checkable
class Joinable(Protocol):
    """A mode whose replicas differ, and may go on in another number: each new replica begins with the mean of all."""

    def unjoinable(self, state: State) -> str:
        """Returns why the states that replicas saved cannot be averaged; "" if they can. `state`: one of them."""
        ...


@runtime_checkable
class TakesPrivacy(Protocol):
    """A mode whose updates may hide each sample, or each client."""

    privacy: Privacy | None


def privacy_of(sync: Sync) -> Privacy | None:
    """Returns the privacy that a mode was given; None where it has no use for one."""
    return sync.privacy if isinstance(sync, TakesPrivacy) else None


@runtime_checkable
class Prunable(Protocol):
    """A mode that sends nothing for weights that are pruned."""

    def prune(self, gone: Mapping[str, Tensor]) -> None:
        """Takes over which weights, and their gradients, are 0 from now on: True in `gone`, alike on all replicas.

        Called between steps, and after `load_state_dict`.
        """
        ...


@runtime_checkable
class SideBySide(Protocol):
    """A mode whose replicas are experts: the models of all are evaluated side by side, and no consensus."""

    def gathered(self, state: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """Returns the state of what is evaluated on replica 0, None elsewhere. `state`: of this replica's whole model.

        Called on every replica, of one worker, where `consensus` is.
        """
        ...

    def judged(self, replicas: int, make_model: Callable[[], nn.Module]) -> nn.Module:
        """Returns the model that is evaluated, whose state `gathered` returns."""
        ...


@runtime_checkable
class InRounds(Protocol):
    """A mode whose servers stop a run before a round, and say before which."""

    def is_through(self, steps: int) -> None:
        """Tells the mode that this worker takes no more of the run's `steps`. Raises `StoppedBefore` where the run
        ended before them.
        """
        ...


@runtime_checkable
class Advises(Protocol):
    """A mode with advice of its own for a loss, or weights, that are no longer finite."""

    def may_help(self) -> str:
        """Returns what to try; the end of a sentence."""
        ...


def what_may_help(sync: object) -> str:
    """Returns what to try where a loss, or weights, are no longer finite; the end of a sentence."""
    return sync.may_help() if isinstance(sync, Advises) else SMALLER_RATE


@runtime_checkable
class HasRate(Protocol):
    """A mode that steps with more than its `optimizer`, or after the step."""

    def at_rate(self, factor: float) -> AbstractContextManager[None]:
        """Returns a context. The step made within it, from `begin` to `update`, has `factor` times the rate."""
        ...


def at_rate(sync: Sync, factor: float) -> AbstractContextManager[None]:
    """Returns a context. The step made within it, from `begin` to `update`, has `factor` times the optimizer's rate.

    A server makes none of these steps. It scales its own by the `rate` of its setting.
    """
    return cast("HasRate", sync).at_rate(factor) if _has_rate(type(sync)) else scaled([sync.optimizer], factor)


@cache
def _has_rate(kind: type[Sync]) -> bool:
    """Says whether modes of this class have a rate of their own: asked in each step, and slow to find out."""
    return issubclass(kind, HasRate)


@runtime_checkable
class KeepsGradients(Protocol):
    """A mode whose parameters do not have the gradients of the last update, or not on all replicas."""

    def gradients(self) -> dict[str, Tensor] | None:
        """Returns what `gradients_of` returns."""
        ...


def gradients_of(sync: Sync) -> dict[str, Tensor] | None:
    """Returns the gradients of the last update by this part's parameters; zeros for one that had none.

    Where replicas agree (`exact`), that is the mean over the samples of all of them, whole. None where nobody holds it:
    servers step, or replicas share it out. Only `paceline verify` asks; all replicas are called.
    """
    if isinstance(sync, KeepsGradients):
        return sync.gradients()
    return None if sync.servers else own_gradients(sync)


def own_gradients(sync: Sync) -> dict[str, Tensor]:
    """Returns the gradients that the parameters have; zeros for one without."""
    return {name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in sync.parameters.items()}


@runtime_checkable
class SharesSteps(Protocol):
    """A mode whose workers do not step all parameters by the run's optimizer."""

    def stepped(self, parameters: Sequence[Tensor], replicas: int) -> list[Sequence[Tensor]]:
        """Returns what `stepped_by` returns."""
        ...


def stepped_by(sync: Sync, parameters: Sequence[Tensor], replicas: int) -> list[Sequence[Tensor]]:
    """Returns those of the parameters that an optimizer keeps state for: a list for each worker, if they differ."""
    return sync.stepped(parameters, replicas) if isinstance(sync, SharesSteps) else [parameters]


@runtime_checkable
class StatesMemory(Protocol):
    """A mode that changes what a worker holds."""

    def memory(self, held: Memory, parameters: Sequence[Tensor], replicas: int) -> Memory:
        """Returns the stated peak bytes of a worker by kind.

        `held`: what a whole part with these parameters takes, with an optimizer's state for those of `stepped_by`.
        """
        ...


@runtime_checkable
class MeasuresMemory(Protocol):
    """A mode that changes what a worker holds, beside its `buffers`."""

    def measured(self, held: Memory) -> Memory:
        """Returns the measured peak bytes of this worker by kind.

        `held` counts the part's parameters, a gradient for each that is trained, the state of `optimizer`,
        activations, and `buffers`.
        """
        ...


@runtime_checkable
class HasZeroStage(Protocol):
    """A mode that sums whole gradients, or shares of them, in each step."""

    def zero_stage(self) -> int | None:
        """Returns the stage of ZeRO as which closed forms of transformers (cost/step.py) time it: 0 for whole copies.

        None for any other exchange.
        """
        ...


# -- of strategies


@runtime_checkable
class ReadsFiles(Protocol):
    """A class of strategies of which a knob may name a file."""

    @classmethod
    def read_files(cls, knobs: dict[str, Any], allowed: Sequence[str]) -> dict[str, Any]:
        """Returns the knobs with what a file holds in place of its name: a run depends on its directory alone.

        `allowed`: the user's own modules whose code may run. Raises `ConfigError`.
        """
        ...


class Say(Protocol):
    """Shows a line. One that `moves` takes the place of the one before it, where that moved, too."""

    def __call__(self, text: str, moves: bool = False) -> None: ...


@runtime_checkable
class MakesReady(Protocol):
    """A strategy that makes on each host what takes long and is kept."""

    def make_ready(self, say: Say) -> None:
        """Makes it. Called on each host before workers start. Raises `MissingToolError`."""
        ...


@runtime_checkable
class CutsSamples(Protocol):
    """A strategy whose parts have a piece of each sample."""

    def of_each_sample(self, part: int) -> str:
        """Returns in words what a part has of each sample, once `split` was called."""
        ...


@runtime_checkable
class Accumulates(Protocol):
    """A strategy that cuts a batch into micro-batches, and makes the backward pass of each before the next begins."""

    accumulated: int  # micro-batches of a batch


def accumulated_by(strategy: Strategy) -> int:
    """Returns the number of micro-batches over which a strategy accumulates gradients itself; 0 where it does not."""
    return strategy.accumulated if isinstance(strategy, Accumulates) else 0


@runtime_checkable
class SendsAlongAxes(Protocol):
    """A strategy that sends along several axes, or to other replicas."""

    def cost_along(self, parts: Sequence[nn.Module], inputs: Samples) -> Mapping[str, list[Traffic]]:
        """Returns what `cost_along` returns."""
        ...


def cost_along(strategy: Strategy, parts: Sequence[nn.Module], inputs: Samples) -> Mapping[str, list[Traffic]]:
    """Returns what `Strategy.cost` states by the axis along which it is sent."""
    if isinstance(strategy, SendsAlongAxes):
        return strategy.cost_along(parts, inputs)
    return {axis: strategy.cost(parts, inputs) for axis in strategy.mesh.axes}


@runtime_checkable
class Exchanges(Protocol):
    """A strategy whose workers wait for several exchanges in a step."""

    def exchanges(self, parts: Sequence[nn.Module], inputs: Samples) -> list[list[Traffic]]:
        """Returns what `exchanges_of` returns."""
        ...


def exchanges_of(strategy: Strategy, parts: Sequence[nn.Module], inputs: Samples) -> list[list[Traffic]]:
    """Returns what `Strategy.cost` states by part and exchange. A worker waits for each before it goes on."""
    if isinstance(strategy, Exchanges):
        return strategy.exchanges(parts, inputs)
    return [[traffic] if traffic else [] for traffic in strategy.cost(parts, inputs)]
