"""The metric that an experiment's runs report beside the loss. No torch for the default task: it must be quick."""

from functools import reduce
from typing import TYPE_CHECKING

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from ...tracking.summaries import is_taken
from .experiment import Choice, Experiment

if TYPE_CHECKING:
    from ...tasks.losses.base import Task

USUAL = "accuracy"


def metric_of(experiment: Experiment, allowed: tuple[str, ...] = ()) -> tuple[str, bool]:
    """Returns the name of its task's metric, and whether larger is better. Raises `ConfigError` for a class that is
    none of ours and not allowed.
    """
    if experiment.task.name == BY_NAME["task"].usual:
        return USUAL, True
    metric = task_of(experiment.task, allowed).metric
    return metric.name, metric.larger_is_better


def task_of(choice: Choice, allowed: tuple[str, ...]) -> "Task":
    """Builds the task. Raises `ConfigError`, also for a class without what each task says of itself."""
    from ...tasks.losses.base import Task
    from ...tasks.losses.metrics import Metric
    from .targets import build

    task = build("task", choice, Task, allowed, {})
    for name, is_right, rule in (
        ("targets", lambda value: value in ("labels", "numbers", "none"), "'labels', 'numbers' or 'none'"),
        ("metric", lambda value: isinstance(value, Metric), "a Metric, such as Accuracy()"),
        (
            "metric.name",
            lambda value: isinstance(value, str) and value and not is_taken(value),
            "a text, under which results have nothing else",
        ),
    ):
        value = reduce(lambda of, key: getattr(of, key, None), name.split("."), task)
        if not is_right(value):
            has = " is missing" if value is None else f"={value!r}"
            raise ConfigError(f"task={choice.name}: {type(task).__qualname__}.{name}{has}; must be {rule}")
    return task
