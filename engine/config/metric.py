"""The metric that an experiment's runs report beside the loss. No torch for the default task: it must be quick."""

from ...conf.groups import BY_NAME
from .experiment import Experiment

USUAL = "accuracy"


def metric_of(experiment: Experiment, allowed: tuple[str, ...] = ()) -> tuple[str, bool]:
    """Returns the name of its task's metric, and whether larger is better. Raises `ConfigError` for a class that is
    none of ours and not allowed.
    """
    if experiment.task.name == BY_NAME["task"].usual:
        return USUAL, True
    from ...tasks.losses.base import Task
    from .targets import build

    metric = build("task", experiment.task, Task, allowed, {}).metric
    return metric.name, metric.larger_is_better
