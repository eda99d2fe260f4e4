"""Early stopping: a run ends once its metric has not got better for so many evaluations (Prechelt 1998, "Early Stopping
- But When?", his criterion UP with strips of one evaluation, and `min_delta` instead of 0).
"""

from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import Ge

from .base import Callback, EvaluationView, Metrics
from .improvement import Improvement, Mode


class EarlyStop(Callback):
    """Counts evaluations, not steps. The weights are those of the end; `Best` keeps the best ones."""

    stops = True

    def __init__(
        self,
        metric: str | None = None,
        patience: Annotated[int, Ge(1)] = 3,
        min_delta: Annotated[float, Ge(0)] = 0.0,
        mode: Mode = "auto",
    ) -> None:
        """`metric`: None for the task's. `patience`: evaluations without one that is better by `min_delta`."""
        self.patience = patience
        self.seen = Improvement(metric, mode, min_delta)
        self.best_step = self.without = 0

    def check(self, metric: str, others: Sequence[str]) -> None:
        self.seen.check(metric, others)

    def each_evaluation(self, view: EvaluationView) -> Metrics:
        if self.seen.is_new_best(view.values):
            self.best_step, self.without = view.step, 0
        else:
            self.without += 1
        return {}

    def reason_to_stop(self) -> str | None:
        if self.without < self.patience:
            return None
        known = "" if self.seen.best is None else f"; the best was {self.seen.best:.6g} at step {self.best_step}"
        return f"{self.seen.metric} has not got better for {self.without} evaluations{known}"

    def state_dict(self) -> dict[str, Any]:
        return {**self.seen.state_dict(), "best_step": self.best_step, "without": self.without}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.seen.load_state_dict(state):
            self.best_step, self.without = state["best_step"], state["without"]
