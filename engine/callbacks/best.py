"""The best weights of a run are kept, beside the last ones."""

from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import Ge

from ...tracking.evaluations import lived
from ...tracking.records import Resume
from ...tracking.run_directory import RunDirectory
from .base import Callback, EvaluationView, Metrics
from .improvement import Improvement, Mode

FILE = "best.safetensors"  # in the run directory


class Best(Callback):
    """The evaluated weights as FILE, and, where replicas step together and checkpoints are kept, a checkpoint of that
    step, which stays however many come after it.
    """

    keeps = True

    def __init__(
        self, metric: str | None = None, min_delta: Annotated[float, Ge(0)] = 0.0, mode: Mode = "auto"
    ) -> None:
        """`metric`: None for the task's. `min_delta`: by how much more than the best so far it must be better."""
        self.seen = Improvement(metric, mode, min_delta)
        self.step = 0
        self._is_best = False

    def check(self, metric: str, others: Sequence[str]) -> None:
        self.seen.check(metric, others)

    def each_evaluation(self, view: EvaluationView) -> Metrics:
        self._is_best = self.seen.is_new_best(view.values)
        if self._is_best:
            self.step = view.step
        return {} if self.seen.best is None else {f"best_{self.seen.metric}": self.seen.best, "best_step": self.step}

    def is_best(self) -> bool:
        return self._is_best

    def state_dict(self) -> dict[str, Any]:
        return {**self.seen.state_dict(), "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.seen.load_state_dict(state):
            self.step = state["step"]


def best_step(run: RunDirectory, until: int | None = None) -> int | None:
    """Returns the step of the best weights so far, as the run's records have it; None: nothing looked for them.

    Args:
        run: The run's directory.
        until: The step that the run goes on from. Records of later steps do not count.
    """
    records = run.records() if until is None else [*run.records(), Resume(until).plain()]
    steps = [record["best_step"] for record in lived(records) if "best_step" in record]
    return int(steps[-1]) if steps and isinstance(steps[-1], int | float) else None


def drop_later(run: RunDirectory, step: int) -> str | None:
    """Removes FILE if its weights are of a step after `step`, from which the run goes on. Returns a note of it."""
    found, file = best_step(run), run.path / FILE
    if found is None or found <= step or not file.exists():
        return None
    file.unlink()
    return f"{FILE} had the weights of step {found}, and the run goes on from step {step}: it is removed."
