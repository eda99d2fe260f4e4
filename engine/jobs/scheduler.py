"""The interface of a scheduler: it starts the processes of a run somewhere else, and can be asked about them."""

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from ...comm.rendezvous import JOB
from ...conf.errors import ConfigError

FINAL = (2, 3, 6, 7)  # exit statuses after which the same would come again
SETTLES = 10.0  # seconds of a job that is over and does not say how: a file of another host is seen late, and a job
# that is put back looks for a moment like one that failed
TOKEN = "token"  # a file in the job's folder, by which the workers of a job know one another


@dataclass(frozen=True)
class JobState:
    """The answer of a scheduler about a job. `word`: in its own words, such as PENDING (Resources)."""

    phase: Literal["waiting", "running", "over"]
    word: str


@dataclass(frozen=True)
class SubmittedRun:
    """One run that is submitted: `run` is its directory, which all nodes must see."""

    run: Path
    allowed: tuple[str, ...] = ()
    config: str = ""  # the contents of its config.yaml
    python: str = sys.executable

    @property
    def allow(self) -> list[str]:
        """Returns the options that allow the user's own modules."""
        return [word for module in self.allowed for word in ("--allow-module", module)]

    @property
    def worker(self) -> list[str]:
        """Returns the command of each process."""
        return [self.python, "-P", "-m", "paceline.cli.main", "train", "--submitted", str(self.run), *self.allow]

    def variables(self, attempt: Path) -> dict[str, str]:
        """Returns the variables that each process has beside those of its node."""
        modules = {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
        return {JOB: str(attempt), **modules}

    @property
    def supervisor(self) -> list[str]:
        """Returns the command of the supervisor, which starts the workers, and starts them again where that helps."""
        return [self.python, "-P", "-m", "paceline.engine.jobs.supervisor", str(self.run), *self.allowed]


@dataclass(frozen=True)
class Retries:
    """The number of times that workers are started again: after they were lost, and after an error of the program."""

    lost: float = inf
    failed: float = 0

    @staticmethod
    def of(given: Mapping[str, Any]) -> "Retries":
        """Reads the knob `launcher.retries`. Raises `ConfigError`."""
        for key, value in given.items():
            if key not in ("lost", "failed"):
                raise ConfigError(f"launcher.retries.{key}: there is no such key. Choose lost or failed.")
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not value >= 0 or value not in (inf, int(min(value, 1e9))):
                raise ConfigError(f"launcher.retries.{key}={value}: must be a number of times from 0, or inf.")
        return Retries(**given)


class Here:
    """The base of the choices of `launcher`: this one starts processes here, or takes those that torchrun started."""


class JobLauncher(Here, ABC):
    """A launcher of processes that something other than paceline starts, as paceline describes them.

    The knobs `nodes` and `workers_per_node` say how many there are.
    """

    nodes: int
    workers_per_node: int
    retries: Retries

    @abstractmethod
    def check(self) -> None:
        """Ask the scheduler whether such a job can ever start. Raises `ConfigError` or `MachineError`."""

    @abstractmethod
    def text(self, job: SubmittedRun) -> str:
        """Returns what is submitted, as text that people can read."""


class Scheduler(JobLauncher):
    """A launcher to which paceline submits jobs. To add one, derive a class and write conf/launcher/NAME.yaml."""

    # -- where the user is

    @abstractmethod
    def submit(self, job: SubmittedRun) -> str:
        """Returns the scheduler's name of the job. Raises `ConfigError` or `MachineError`."""

    @abstractmethod
    def look(self, id: str) -> JobState | None:
        """Returns the job's state. None: the scheduler cannot be reached now, which says nothing of the job."""

    @abstractmethod
    def cancel(self, id: str, now: bool = False) -> None:
        """Ask the workers to save and stop, and do not start them again; `now`: end them at once.

        Raises `MachineError`.
        """

    # -- in the supervisor, which may be in the job

    @abstractmethod
    def start(self, job: SubmittedRun, attempt: Path) -> subprocess.Popen[bytes]:
        """Start all workers once, with PACELINE_JOB=`attempt`; what is returned ends when all of them have."""

    @abstractmethod
    def ask_to_stop(self, workers: subprocess.Popen[bytes]) -> None:
        """Send the workers SIGTERM, for which they save and stop. Raises `MachineError` where it cannot do so now."""

    def is_better_now(self) -> bool:
        """Returns whether the workers had better save and start anew, since there is more room. Is asked often."""
        return False

    def is_preempted(self) -> bool:
        """Returns whether the scheduler itself has stopped the workers, since it needs their place for now."""
        return False

    @abstractmethod
    def put_back(self) -> None:
        """Have the job started again later: its time is over, and its work is not. Raises `MachineError`."""
