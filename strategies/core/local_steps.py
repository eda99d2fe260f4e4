"""Sync modes that are one step of a replica's own, and then an exchange of weights."""

from abc import abstractmethod

from ...compat.optimizers import step
from .sync import Sync


class LocalSteps(Sync):
    """A sync mode whose replicas step alone and then exchange weights, before the next step begins.

    The exchanges of several such modes may follow one step (strategies/sync/composed.py).
    """

    def update(self) -> None:
        self.clip_gradients()
        step(self.optimizer)
        self.exchange_weights()

    @abstractmethod
    def exchange_weights(self) -> None:
        """Exchanges weights with other replicas, if this step is one of those in which the mode does.

        Called once after each step.
        """
