"""Interfaces of one or two sync modes each. The engine asks whether a mode has one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

SMALLER_RATE = "a smaller optimizer.lr may help"


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
class Prunable(Protocol):
    """A mode that sends nothing for weights that are pruned."""

    def prune(self, gone: Mapping[str, Tensor]) -> None:
        """Takes over which weights, and their gradients, are 0 from now on: True in `gone`, alike on all replicas.

        Called between steps, and after `load_state_dict`.
        """
        ...


@runtime_checkable
class SideBySide(Protocol):
    """A mode whose replicas are experts (the trait `experts`): the models of all are evaluated side by side."""

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
    """A mode whose servers stop a run before a round (the trait `server_stops`)."""

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
