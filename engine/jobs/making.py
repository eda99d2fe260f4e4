"""Builds what starts a run's processes elsewhere, as its configuration names it."""

from ...conf.errors import ConfigError
from ..config.experiment import Experiment
from ..config.targets import build
from .scheduler import Here, JobLauncher, Scheduler


def job_launcher_of(experiment: Experiment, allowed: tuple[str, ...]) -> JobLauncher:
    """The choice of `launcher`, of a run whose processes are elsewhere. Raises `ConfigError`."""
    made = build("launcher", experiment.choice("launcher"), Here, allowed, {})
    assert isinstance(made, JobLauncher), "launcher: its fabric says that it starts nothing here"
    return made


def scheduler_of(experiment: Experiment, allowed: tuple[str, ...]) -> Scheduler:
    """The same, where paceline submits to it. Raises `ConfigError`."""
    made = job_launcher_of(experiment, allowed)
    if not isinstance(made, Scheduler):
        name = experiment.choice("launcher").name
        raise ConfigError(f"launcher={name}: paceline submits nothing to it. Choose --print, and kubectl apply.")
    return made
