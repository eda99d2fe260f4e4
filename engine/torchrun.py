"""The same worker under torchrun: each process composes the experiment for itself and meets the others by env://."""

import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import torch

from ..comm.process import ProcessComm, connect_env
from ..tracking.run_directory import RunDirectory
from .build import Parts, assemble
from .errors import InterruptedRunError, WorkerFailedError
from .failures import named, speaks_for_itself
from .launch import WORKER_FAILED, what_is_saved
from .plan import Plan
from .session import Prepared, Result, make_ready, open_directory, result_of, start_mirror
from .worker import Assignment, prepare_process, work


def run_as_worker(prepared: Prepared, plan: Plan, root: Path, quiet: bool) -> Result | None:
    """Take part in the run that torchrun started; returns the result on the chief, None on every other worker.

    The chief makes the run directory and tells the others where: checkpoints of a pipeline on several hosts need a
    file system that they share.
    """
    experiment, chief = prepared.experiment, plan.layout.chief
    rank = int(os.environ["RANK"])
    parts = assemble(experiment, prepared.allowed, plan.layout.world_size)
    make_ready(plan, quiet or rank != chief)
    device = prepare_process(experiment, parts, int(os.environ.get("LOCAL_RANK", rank)))
    comm = connect_env(experiment.hardware.timeout, device)
    signals: list[int] = []

    def stop(number: int, _: object) -> None:
        signals.append(number)
        comm.board.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if rank != chief:
        directory = RunDirectory(Path(comm.board.read("run", chief)))
        _work(replace(prepared.assignment(directory), trace=None), parts, comm, device)
        comm.close()
        return None
    directory = open_directory(prepared, plan, root)
    comm.board.post("run", str(directory.path))
    layout = plan.layout
    servers = layout.servers * layout.parts
    print(
        f"torchrun started {layout.world_size} processes: {layout.workers} workers, {servers} servers", file=sys.stderr
    )
    assignment = prepared.assignment(directory)
    mirror = start_mirror(prepared, directory, quiet)
    try:
        _work(assignment, parts, comm, device)
        comm.close()
    finally:
        mirror.close()
    result = result_of(directory)
    if result.summary["status"] != "interrupted":
        return result
    if signals:
        name = signal.Signals(signals[0]).name
        raise InterruptedRunError(f"stopped by {name}; {what_is_saved(assignment)}", 128 + signals[0])
    who = "the workers stopped before the last step though torchrun did not tell this one to (a signal to another?)"
    raise WorkerFailedError(f"{who}; {what_is_saved(assignment)}", WORKER_FAILED, [])


def _work(assignment: Assignment, parts: Parts, comm: ProcessComm, device: torch.device) -> None:
    """As `work`; a user's exception is a worker's failure, with its traceback before the last line: there is no log."""
    try:
        work(assignment, parts, comm, device)
    except Exception as error:
        if speaks_for_itself(error):
            raise
        details = ["".join(traceback.format_exception(error)).rstrip()]
        message = f"worker {comm.rank} failed: {named(error)}; {what_is_saved(assignment)}"
        raise WorkerFailedError(message, WORKER_FAILED, details) from error
