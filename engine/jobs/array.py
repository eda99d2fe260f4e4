"""A sweep's job array: each of its tasks is a sweeper, which trains one trial after another on its own allocation."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ...conf.errors import ConfigError
from ...tracking.files import read_text
from ...tracking.run_directory import write_atomically
from ..base.errors import MachineError
from ..base.parent_death import die_with_parent
from ..config.experiment import Experiment
from .local_supervisor import LocalSupervisor
from .making import job_launcher_of
from .scheduler import JobState, SubmittedRun
from .slurm import Slurm
from .submission import check

SCRIPT, ARRAY = "array.sh", "array"  # files in the sweep's directory: the batch script, and the id of its job


class JobArray:
    """The array of a sweep's sweepers. `directory`: of the sweep."""

    def __init__(self, directory: Path, experiment: Experiment, allowed: tuple[str, ...]) -> None:
        """`experiment`: a trial's. Raises `ConfigError` or `MachineError`."""
        launcher = job_launcher_of(experiment, allowed) if experiment.choice("launcher").name == "slurm" else None
        if not isinstance(launcher, Slurm):
            raise ConfigError(
                f"--array: launcher={experiment.choice('launcher').name} has no job arrays. "
                "Choose launcher=slurm, or leave --array out."
            )
        check(experiment, launcher)
        self._directory, self._slurm = directory, launcher

    def text(self, sweepers: int, options: Sequence[str] = ()) -> str:
        """Returns the batch script. `options`: of each sweeper."""
        command = [sys.executable, "-P", "-m", "paceline.cli.main", "sweep", "--resume", "--name", self._directory.name]
        log = f"{str(self._directory / 'sweep-').replace('%', '%%')}%a.log"
        own = [f"--array=0-{sweepers - 1}"]
        return self._slurm.script(self._directory.name, log, own, shlex.join([*command, *options, "--array-task"]))

    def submit(self, sweepers: int, options: Sequence[str]) -> str:
        """Returns SLURM's id of the array. Raises `MachineError`."""
        id = self._slurm.hand_in(self._directory / SCRIPT, self.text(sweepers, options))
        write_atomically(self._directory / ARRAY, f"{id}\n")
        return id


def check_over(directory: Path) -> None:
    """Checks that no array goes on with the sweep. Raises `ConfigError`."""
    try:
        id = read_text(directory / ARRAY).strip()
    except FileNotFoundError:
        return
    state = Slurm().look(id)
    if state is None:
        raise ConfigError(
            f"--resume: SLURM cannot be asked about the sweep's job array {id}. Resume it where SLURM answers, or "
            f"remove {directory / ARRAY} once the array is over."
        )
    if state.phase != "over":
        raise ConfigError(
            f"--resume: the sweep's job array {id} goes on ({state.word}). Choose paceline watch {directory.name}, or "
            f"scancel {id} first."
        )


def task() -> str:
    """Returns SLURM's name of the task that this process is of. Raises `ConfigError`."""
    try:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    except KeyError:
        raise ConfigError("--array-task: is for the tasks of a job array. Choose --array J.") from None


def put_back_if_due(number: int) -> None:
    """Has SLURM put back this task, whose sweeper was stopped by the signal `number`, at its limit or if preempted."""
    slurm = Slurm()
    if number == signal.SIGUSR1 or slurm.is_preempted():
        slurm.put_back()


class InAllocation(LocalSupervisor):
    """Starts a run's supervisor in the allocation of this process. It ends with the thread that submits the run."""

    def check(self) -> None: ...

    def text(self, job: SubmittedRun) -> str:
        return shlex.join(job.supervisor)

    def submit(self, job: SubmittedRun) -> str:
        with (job.run / "logs" / "supervisor.log").open("ab") as log:
            self._process = subprocess.Popen(
                job.supervisor,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),
            )
        return task()

    def look(self, id: str) -> JobState | None:
        return JobState("running", "RUNNING") if self._process.poll() is None else JobState("over", "ended")

    def cancel(self, id: str, now: bool = False) -> None:
        self._process.send_signal(signal.SIGKILL if now else signal.SIGTERM)

    def start(self, job: SubmittedRun, attempt: Path) -> subprocess.Popen[bytes]:
        raise MachineError("the supervisor starts the workers")
