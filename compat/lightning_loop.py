"""Tells where the loop of Lightning stands between two updates."""

from typing import Any


def accumulates(trainer: Any) -> bool:
    """Returns whether the pass under way has no update after it: others follow, whose gradients add up."""
    return trainer.fit_loop._should_accumulate()
