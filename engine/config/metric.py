"""The metric that an experiment's runs report beside the loss. No torch for the default task: it must be quick."""

from ...conf.groups import BY_NAME
from .experiment import Experiment

USUAL = "accuracy"


def metric_of(experiment: Experiment, allowed: tuple[str, ...] = ()) -> str:
    """The name of its task's metric. Raises `ConfigError` for a class that is none of ours and not allowed."""
    if experiment.task.name == BY_NAME["task"].usual:
        return USUAL
    from ...tasks.losses.base import Task
    from .targets import load_class

    return load_class("task", experiment.task.target, Task, allowed).metric.name
