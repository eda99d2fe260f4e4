"""A run ends once its metric reaches the target: what `stop_at_target=true` adds to a run's callbacks."""

from ...tasks.losses.metrics import Metric
from .base import Callback, EvaluationView, Metrics


class AtTarget(Callback):
    """Reads the same score as time to accuracy does, so that the run ends at the evaluation which gives that time."""

    stops = True

    def __init__(self, metric: Metric, target: float) -> None:
        """`metric`: the task's."""
        self.metric, self.target = metric, target
        self.score, self.step = -float("inf"), 0

    def each_evaluation(self, view: EvaluationView) -> Metrics:
        self.score, self.step = view.values[self.metric.name], view.step
        return {}

    def reason_to_stop(self) -> str | None:
        if not self.metric.reaches(self.score, self.target):
            return None
        return f"{self.metric.name} is {self.score:.6g} at step {self.step}, and target_accuracy={self.target:g}"
