"""The generations of one torchrun job: when a worker or a host is lost, torchrun starts all workers anew.

The same command then finds the run's name taken. A run says which job made it: within that job, and with the same
configuration, a later generation goes on with the run, from its newest checkpoint.
"""

import json
import shutil
import sys
import time
from pathlib import Path

from ...comm.rendezvous import job_of_torchrun
from ...tracking.alive import is_held
from ...tracking.errors import CorruptRunError
from ...tracking.run_directory import RunDirectory, read_object, write_atomically
from .checkpoint import steps_of

NOTE = "job.json"
PATIENCE, PAUSE = 30.0, 0.1  # seconds for the generation before to end


def note_job(directory: RunDirectory) -> None:
    """Write down which job makes the run."""
    if (job := job_of_torchrun()) is not None:
        write_atomically(directory.path / NOTE, json.dumps({"job": job}) + "\n")


def left_at(path: Path) -> RunDirectory | None:
    """Returns the run at `path` if an earlier generation of this job made it, and has ended before it was complete."""
    if not _is_of_this_job(path) or not _has_ended(path):
        return None
    directory = RunDirectory(path)
    return None if (directory.read_summary() or {}).get("status") == "completed" else directory


def last_checkpoint(directory: RunDirectory) -> Path | None:
    """Returns the checkpoint that a later generation goes on from; a run that has none makes room."""
    if checkpoints := steps_of(directory.checkpoints):
        return checkpoints[-1]
    _say(directory, "begins anew, with no checkpoint to go on from")
    shutil.rmtree(directory.path)
    return None


def say_it_goes_on(directory: RunDirectory, checkpoint: Path) -> None:
    _say(directory, f"goes on from {checkpoint.name}")


def _say(directory: RunDirectory, how: str) -> None:
    print(f"run {directory.name}: {how}, as its job was started again", file=sys.stderr)


def _is_of_this_job(path: Path) -> bool:
    if (job := job_of_torchrun()) is None:
        return False
    try:
        return (read_object(path / NOTE) or {}).get("job") == job
    except CorruptRunError:
        return False


def _has_ended(path: Path) -> bool:
    deadline = time.monotonic() + PATIENCE
    while is_held(path / "metrics.jsonl"):
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
    return True
