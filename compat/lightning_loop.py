"""Tells where the loop of Lightning stands between two updates."""

from math import inf
from typing import Any

from lightning.pytorch.callbacks import GradientAccumulationScheduler  # pyright: ignore[reportMissingImports]


def accumulates(trainer: Any) -> bool:
    """Returns whether the pass under way has no update after it: others follow, whose gradients add up."""
    return trainer.fit_loop._should_accumulate()


def length(trainer: Any, batches: int) -> tuple[int, int, float, float]:
    """Returns the batches of a pass, the batches of a step, the most passes and the most steps.

    Args:
        trainer: Lightning's.
        batches: batches of the data loader.
    """
    limit, passes, steps = trainer.limit_train_batches, trainer.max_epochs, trainer.max_steps
    used = min(limit, batches) if isinstance(limit, int) else int(limit * batches)
    if passes == -1 or any(isinstance(each, GradientAccumulationScheduler) for each in trainer.callbacks):
        passes = inf  # steps of several sizes are not counted beforehand
    return used, trainer.accumulate_grad_batches, passes, inf if steps == -1 else steps
