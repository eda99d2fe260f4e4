"""The run of a scheduler's job, as each of its processes takes it up."""

from pathlib import Path

from ...comm.rendezvous import job_folder
from ...conf.errors import ConfigError
from ...tracking.run_directory import RunDirectory
from ..base.errors import InterruptedRunError, MachineError, WorkerFailedError
from ..base.own_modules import find_modules
from ..base.started import place, was_started
from ..config.stored import read_stored
from .preparing import Prepared
from .results import Result
from .session import carry_out


def take_up(run: Path, allowed: tuple[str, ...]) -> Result | None:
    """Train as one process of the run's job: `paceline train --submitted RUN`. Says in a file how it ended.

    Raises what the run ended with.
    """
    from ..launch.worker_process import log_to
    from ..planning import resizing

    attempt, rank = _attempt(), place()[0]
    find_modules(allowed)
    try:
        if not (run / "config.yaml").is_file():
            raise MachineError(f"--submitted {run}: this node does not see the run's directory")
        log_to(run / "logs" / f"worker-{rank:03d}.log")
        directory = RunDirectory(run)
        stored = read_stored(directory)
        checkpoint = _newest(directory)
        experiment = resizing.at_this_size(stored.experiment, allowed, checkpoint)
        prepared = Prepared(experiment, allowed, directory, stored, checkpoint, None)
        return carry_out(prepared, prepared.plan(), run.parent, quiet=True)
    except BaseException as error:
        from ..jobs.ends import say
        from ..launch.worker_process import describe

        words = describe(error)
        if isinstance(error, InterruptedRunError | WorkerFailedError):  # whose messages are whole
            words |= {"exit_code": error.exit_code, "message": str(error)}
        say(attempt, rank, words)
        raise


def _attempt() -> Path:
    folder = job_folder()
    if not was_started() or folder is None:
        raise ConfigError(
            "--submitted: is for the processes of a scheduler's job. Choose launcher=slurm, or --resume RUN."
        )
    return folder


def _newest(directory: RunDirectory) -> Path | None:
    from ..base.checkpoint import steps_of

    return next(reversed(steps_of(directory.checkpoints)), None)
