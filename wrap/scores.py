"""The result of an evaluation that a script made."""

import math
from typing import Any

from torch import Tensor

from ..engine.base.errors import DivergedError
from ..tracking.records import Score
from ..tracking.summaries import is_taken
from .errors import ScriptError

ROUNDING = 1e-5  # of an accuracy in float32


def score_of(metric: str, value: float | Tensor, loss: float | Tensor | None, who: str, step: int) -> Score:
    """Returns what a script's evaluation after `step` gave.

    Raises `DivergedError` where it is not finite, and `ScriptError` for what is no accuracy from 0 to 1.
    """
    value, loss = _number(metric, value), None if loss is None else _number("loss", loss)
    for name, number in ((metric, value), ("loss", loss)):
        if number is not None and not math.isfinite(number):
            raise DivergedError(f"{who} diverged: {name} is {number}, evaluated after step {step}")
    if metric == "loss":
        raise ScriptError("evaluated: metric=loss: a loss stands beside a metric. Choose evaluated(value, loss=...)")
    if not metric or is_taken(metric):
        raise ScriptError(f"evaluated: metric={metric}: a run has something else under it. Choose another name.")
    if metric == "accuracy" and not 0 <= value <= 1 + ROUNDING:
        raise ScriptError(
            f"evaluated: accuracy={value:g}: must be from 0 to 1. Divide per cent by 100, or name another metric="
        )
    return Score(metric, value, loss)


def _number(name: str, value: Any) -> float:
    """Returns the number in a float, a tensor or an array of one entry. Raises `ScriptError`."""
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ScriptError(
            f"evaluated: {name} is a {type(value).__name__}: must be one number. Choose a float or a tensor."
        ) from None
