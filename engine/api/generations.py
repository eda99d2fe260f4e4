"""The generations of one torchrun job: when a worker or a host is lost, torchrun starts all workers anew.

The same command then finds the run's name taken. A run says which job made it: within that job, and with the same
configuration, a later generation goes on with the run, from its newest checkpoint.
"""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from ...comm.rendezvous import job_of_torchrun
from ...tasks.base import Data
from ...tracking.alive import is_held
from ...tracking.errors import CorruptRunError
from ...tracking.run_directory import RunDirectory, read_object, write_atomically
from ..base.checkpoint import steps_of
from ..config.stored import read_stored
from ..planning.planned import Plan
from ..planning.resuming import check_can_go_on

NOTE = "job.json"
PATIENCE, PAUSE = 30.0, 0.1  # seconds for the generation before to end


def note_job(directory: RunDirectory) -> None:
    """Write down which job makes the run."""
    if (job := job_of_torchrun()) is not None:
        write_atomically(directory.path / NOTE, json.dumps({"job": job}) + "\n")


def is_of_this_job(path: Path) -> bool:
    """Returns True if an earlier generation of this job made the run at `path`."""
    if (job := job_of_torchrun()) is None:
        return False
    try:
        return (read_object(path / NOTE) or {}).get("job") == job
    except CorruptRunError:
        return False


def earlier(path: Path, config: dict[str, Any], plan: Plan, data: Data) -> tuple[RunDirectory, Path] | None:
    """The run of an earlier generation, and the checkpoint to go on from. `config`: what is asked for now.

    None where there is nothing to go on with: a run without a checkpoint makes room. Raises `ConfigError` where the
    run cannot go on, for instance with another number of workers.
    """
    if not is_of_this_job(path) or not _has_ended(path):
        return None
    directory = RunDirectory(path)
    stored = read_stored(directory)
    if stored.plain != config or (directory.read_summary() or {}).get("status") == "completed":
        return None
    checkpoints = steps_of(directory.checkpoints)
    if not checkpoints:
        print(f"run {path.name}: begins anew, as its job was started again before a checkpoint", file=sys.stderr)
        shutil.rmtree(path)
        return None
    check_can_go_on(directory, stored, checkpoints[-1], plan, data)
    print(f"run {path.name}: goes on from {checkpoints[-1].name}, as its job was started again", file=sys.stderr)
    return directory, checkpoints[-1]


def _has_ended(path: Path) -> bool:
    deadline = time.monotonic() + PATIENCE
    while is_held(path / "metrics.jsonl"):
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
    return True
