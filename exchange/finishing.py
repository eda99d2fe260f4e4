"""Sync modes that can exchange gradients before their update, so that a script's loop may change the mean."""

from enum import Enum, auto
from typing import Protocol, runtime_checkable


class Finished(Enum):
    """The gradients in `.grad` after a step's last backward pass."""

    MEAN = auto()  # all replicas have the same ones, and step with them
    OWN = auto()  # a replica's own, with which it steps alone
    UNSENT = auto()  # a replica's own, which `update` exchanges
    SHARDED = auto()  # `.grad` has none: each replica keeps a part of them


@runtime_checkable
class FinishesGradients(Protocol):
    def finish_gradients(self) -> Finished:
        """Exchanges the gradients of a step after its last backward pass, if it can be done before `update`.

        Optional: `update` does it otherwise. All replicas call it.
        """
        ...
