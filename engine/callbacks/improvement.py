"""Decides whether a metric improved, for early stopping and for the best checkpoint."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Mode = Literal["auto", "min", "max"]
LOSS = "loss"


class Improvement:
    """The best value so far of one metric. Only a finite value that is better by more than `min_delta` is."""

    def __init__(self, metric: str | None, mode: Mode, min_delta: float = 0.0) -> None:
        """`metric`: None for the task's own, of which larger is better. `mode`: auto knows the task's, and the loss."""
        self._asked, self._mode, self._min_delta = metric, mode, min_delta
        self.best: float | None = None
        self.metric = metric or ""  # known once it was checked

    def check(self, metric: str, others: Sequence[str]) -> None:
        """`metric`: the task's. Raises ValueError."""
        self.metric = self._asked or metric
        known = self.metric in (metric, LOSS)
        if not known and not others:
            raise ValueError(
                f"metric={self.metric}: must be {metric} or {LOSS}, or what a callback before this one measures"
            )
        if not known and self._mode == "auto":
            raise ValueError(
                f"mode=auto: knows which way {metric} and {LOSS} are better; of {self.metric} say min or max"
            )

    def takes_larger(self, metric: str) -> bool:
        """Returns whether it takes larger values of the task's metric for better by default."""
        return self._mode == "auto" and self.metric == metric

    @property
    def _smaller(self) -> bool:
        return self._mode == "min" or (self._mode == "auto" and self.metric == LOSS)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "metric": self.metric, "smaller": self._smaller}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Restores the best value. Returns False if it is of another metric, so that none is known yet."""
        own = {"metric": self.metric, "smaller": self._smaller}  # an earlier version did not save them
        is_same = all(state.get(key, value) == value for key, value in own.items())
        self.best = state["best"] if is_same else None
        return is_same

    def is_new_best(self, values: Mapping[str, float]) -> bool:
        """Raises ValueError where the metric was not measured."""
        if self.metric not in values:
            raise ValueError(f"metric={self.metric}: was not measured; there are {', '.join(values)}")
        value = values[self.metric]
        if not math.isfinite(value):
            return False
        if self.best is not None and (self.best - value if self._smaller else value - self.best) <= self._min_delta:
            return False
        self.best = value
        return True
