"""Builds the launcher that a run's configuration names."""

from ...conf.errors import ConfigError
from ..config.experiment import Experiment
from ..config.targets import build
from .scheduler import Here, JobLauncher, Scheduler


def job_launcher_of(experiment: Experiment, allowed: tuple[str, ...]) -> JobLauncher:
    """Returns the launcher of a run whose processes are not started here. Raises `ConfigError`."""
    made = build("launcher", experiment.choice("launcher"), Here, allowed, {})
    assert isinstance(made, JobLauncher), "launcher: its fabric says that it starts nothing here"
    return made


def scheduler_of(experiment: Experiment, allowed: tuple[str, ...]) -> Scheduler:
    """Returns the launcher of a run, if paceline submits jobs to it. Raises `ConfigError`."""
    made = build("launcher", experiment.choice("launcher"), Here, allowed, {})
    if not isinstance(made, Scheduler):
        instead = "Choose --print, and kubectl apply." if isinstance(made, JobLauncher) else "No job has this run."
        raise ConfigError(f"launcher={experiment.choice('launcher').name}: paceline submits nothing to it. {instead}")
    return made
