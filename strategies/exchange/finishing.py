"""Sync modes that can exchange gradients before their update, so that a script's loop may change the mean."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class FinishesGradients(Protocol):
    def finish_gradients(self) -> bool:
        """Leaves in `.grad` the gradients that `update` clips and steps with, after a step's last backward pass.

        Optional: `update` does it otherwise. All replicas call it. Returns False where the gradients of this step reach
        other replicas inside `update` alone.
        """
        ...
