"""One run of workers, whoever starts them: watched to the end, and what is said of how it ended."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...comm.shared_memory import MIB, available
from ...conf.errors import ConfigError
from ...tracking.run_directory import RunDirectory
from ...tracking.visible import visible
from ..base.errors import InterruptedRunError, WorkerFailedError
from ..base.failures import NO_MEMORY, how_it_ended
from ..base.signals import STOP_SIGNALS, lost
from ..fabrics.assignment import Assignment
from ..fabrics.layout import RunLayout
from .launcher import Handle, Launcher
from .local_workers import WORKER_FAILED, Ended
from .saved import what_is_saved

LOST_A_PEER = "PeerLostError"  # such a worker is not the cause
NOT_OF_ONE = ("ForkServer", "HangError", "DivergedError", "NotFiniteError")  # the sentence says of whom


def launch(
    launcher: Launcher,
    assignment: Assignment,
    layout: RunLayout,
    survives: bool,
    preload: tuple[str, ...] = (),
    started: Callable[[Handle], None] = lambda _: None,
    memory: int = 0,
) -> None:
    """Run to the end. `preload`: modules to import once, before workers are forked.

    `survives`: whether the others go on when a worker dies; all but replica 0 and servers may then. `started` is given
    the workers' handle, to stop them from elsewhere. `memory`: bytes that the largest worker is planned to need.
    Raises `WorkerFailedError` or `InterruptedRunError`, with every worker gone.
    """
    handle = to_the_end(launcher, assignment, layout, survives, preload, started, memory)
    # a signal may come in the last step, or later
    if launcher.is_complete(assignment.run):
        return
    if handle.stop_signal:
        name = signal.Signals(handle.stop_signal).name
        raise InterruptedRunError(f"stopped by {name}; {what_is_saved(assignment)}", 128 + handle.stop_signal)
    who = "the workers stopped before the last step though this command was not told to stop (a signal to a worker?)"
    raise WorkerFailedError(f"{who}; {what_is_saved(assignment)}", WORKER_FAILED, [])


def to_the_end(
    launcher: Launcher,
    assignment: Assignment,
    layout: RunLayout,
    survives: bool = False,
    preload: tuple[str, ...] = (),
    started: Callable[[Handle], None] = lambda _: None,
    memory: int = 0,
) -> Handle:
    """Runs like `launch`, but leaves it to the caller to check that the run is complete. Raises `WorkerFailedError`."""
    handle = launcher.start(assignment, layout, survives, preload)
    try:
        started(handle)
        with _signals(handle):
            ended = handle.watch()
    finally:
        handle.kill()
    failures = [worker for worker in ended if worker.failed]
    if failures:
        raise _explain(failures, launcher, layout, assignment, handle.has_started, memory)
    return handle


@contextmanager
def _signals(handle: Handle) -> Iterator[None]:
    """Handles SIGINT and SIGTERM while the workers are watched: they mean save and stop. So does one that came
    before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, _: handle.stop(number)) for number in STOP_SIGNALS}
    try:
        if number := lost():
            handle.stop(number)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _explain(
    failures: list[Ended], launcher: Launcher, layout: RunLayout, assignment: Assignment, started: bool, memory: int
) -> WorkerFailedError:
    cause = cause_among(failures)
    is_refused = cause.exit_code == ConfigError.exit_code
    role, run = layout.role(cause.rank), assignment.run
    if is_refused and not started:  # by the key first; one host may lack what the others have
        is_one = layout.world_size > 1 and not launcher.fabric.modelled and cause.error not in NOT_OF_ONE
        of_one = f" ({role.kind} {cause.rank})" if is_one else ""
        return WorkerFailedError(f"{visible(cause.message)}{of_one}", cause.exit_code, [], cause.error)
    when = _last_step(run) if started else ", during start-up,"
    who = "" if cause.error in NOT_OF_ONE else f"{role.kind} {cause.rank}{when} "
    details = [f"log: {run / 'logs' / f'worker-{launcher.process_of(cause.rank):03d}.log'}"]
    needs = ""
    if NO_MEMORY in cause.message:
        needs = (
            f"; by its plan a worker takes {memory / MIB:,.0f} MiB, and this host has {available() / MIB:,.0f} MiB free"
        )
    saved = f"; {what_is_saved(assignment)}" if launcher.fabric.saves or (started and not is_refused) else ""
    message = f"{who}{how_it_ended(cause.error, cause.message)}{needs}{saved}"
    return WorkerFailedError(message, cause.exit_code, details, cause.error)


def cause_among(failures: list[Ended]) -> Ended:
    """A worker's own error before a kill, both before those who only lost a peer.

    Of those that waited for one another too long it is one that waited for none of them.
    """
    rank_of_cause = {"Killed": 1, "Exited": 1, "ForkServer": 1, LOST_A_PEER: 2}
    hung = {worker.rank for worker in failures if worker.error == "HangError"}
    return min(
        failures,
        key=lambda worker: (rank_of_cause.get(worker.error, 0), not hung.isdisjoint(worker.missing), worker.rank),
    )


def _last_step(run: Path) -> str:
    steps = [record["step"] for record in RunDirectory(run).records() if record["kind"] == "step"]
    return f", after step {steps[-1]}," if steps else ""
