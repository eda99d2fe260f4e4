"""One run's workers on this host: what each process does, and what is said of how they ended.

Each worker is a process; those of the virtual cluster are threads of one. See crew.py for how they are watched.
"""

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch

from ..comm import Comm
from ..comm.board import mark_lost
from ..comm.errors import HangError
from ..comm.network import Link, Network
from ..comm.process import connect
from ..comm.rendezvous import serve_store
from ..comm.shared_memory import MIB, available
from ..comm.virtual import Cluster
from ..tracking.files import open_to_write
from ..tracking.run_directory import SWEEP_NOTE, RunDirectory, writing
from ..tracking.visible import visible
from .build import Parts, assemble
from .crew import READY, STOP_SIGNALS, WORKER_FAILED, Crew, Ended, let_go_of_fork_server
from .errors import InterruptedRunError, WorkerFailedError
from .experiment import VirtualHardware, from_yaml, to_yaml
from .failures import NO_MEMORY, exit_code_of, lack_of, named, place_of, words_of
from .layout import Layout
from .tied import tie
from .worker import Assignment, prepare_process, work

LOST_A_PEER = "PeerLostError"  # such a worker is not the cause
OWN_WORDS = ("Killed", "Exited", "ForkServer", "HangError", "DivergedError")  # a sentence without the error's type
NOT_OF_ONE = ("ForkServer", "HangError", "DivergedError")  # the sentence says of whom


# -- in the worker


def worker_main(rank: int, told: dict[str, Any], channel: Connection) -> None:
    """A local worker process. Ends with the exit code of what went wrong."""
    tie_to_launcher()
    try:
        _log_to(Path(told["run"]) / "logs" / f"worker-{rank:03d}.log")
    except Exception as error:  # without a log, standard error is still the launcher's: no traceback
        _leave(channel, describe(error))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what Ctrl-C means
    ended = {"error": "", "message": "", "exit_code": 0}
    cluster: Cluster | None = None
    say_started = _once(lambda: channel.send_bytes(json.dumps(READY).encode()))
    try:
        assignment = Assignment(
            from_yaml(told["experiment"]),
            Path(told["run"]),
            tuple(told["allowed"]),
            told["identity"],
            Path(told["resume"]) if told["resume"] else None,
            Path(told["trace"]) if told["trace"] else None,
        )
        parts = assemble(assignment.experiment, assignment.allowed, told["world_size"])
        device = prepare_process(assignment.experiment, parts, rank)
        if isinstance(assignment.experiment.hardware, VirtualHardware):
            cluster = cluster_of(parts, assignment.experiment.hardware)
            run_virtual(assignment, parts, cluster, say_started)
        else:
            timeout = assignment.experiment.hardware.timeout
            comm = connect(told["store"], rank, told["world_size"], timeout, device)
            _stop_on_sigterm(comm.board.request_stop)
            work(assignment, parts, comm, device, say_started)
            comm.close()
    except BaseException as error:
        ended = describe(error, cluster.failed_rank if cluster is not None else None)
        with suppress(OSError):  # a full disk takes no log either
            traceback.print_exc()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    _leave(channel, ended)


def _leave(channel: Connection, ended: dict[str, Any]) -> NoReturn:
    """Not by way of destructors: after a failure they may wait for peers."""
    with suppress(OSError):
        channel.send_bytes(json.dumps(ended).encode())
    os._exit(ended["exit_code"])


def tie_to_launcher() -> None:
    """This child of the fork server dies when that does, and that dies with the launcher."""
    tie(signal.SIGKILL)
    let_go_of_fork_server()
    if os.getppid() == 1:
        os._exit(4)  # the fork server went before we asked the kernel to tell us


def _once(do: Callable[[], object]) -> Callable[[], None]:
    """`do` the first time that it is called."""
    left = [do]

    def instead() -> None:
        if left:
            left.pop()()

    return instead


def _stop_on_sigterm(request_stop: Callable[[], None]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: request_stop())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def cluster_of(parts: Parts, hardware: VirtualHardware) -> Cluster:
    """The workers of the virtual cluster that `hardware` describes."""
    network = Network(
        between=Link(**hardware.network.model_dump()),
        inside=Link(**hardware.inside.model_dump()),
        workers_per_host=hardware.workers_per_host,
        hosts_per_rack=hardware.hosts_per_rack,
        oversubscription=hardware.oversubscription,
    )
    return Cluster(parts.layout.world_size, network)


def run_virtual(
    assignment: Assignment, parts: Parts, cluster: Cluster, started: Callable[[], None] = lambda: None
) -> None:
    """All workers of a virtual cluster, to the end. Raises what the first to fail raised."""
    _stop_on_sigterm(cluster.request_stop)

    def work_as_one(comm: Comm) -> None:
        strategy, sync = parts.make_pair()
        work(assignment, replace(parts, strategy=strategy, sync=sync), comm, torch.device("cpu"), started)

    cluster.run(work_as_one)


def describe(error: BaseException, virtual_rank: int | None = None) -> dict[str, Any]:
    """An exception as JSON: the words of an `Ended`. `virtual_rank`: the worker's, of several in one process."""
    own_code, lack = exit_code_of(error), lack_of(error)
    told: dict[str, Any] = {"error": "", "message": named(error), "exit_code": WORKER_FAILED}
    if isinstance(error, SystemExit):
        told.update(error="Exited", message=f"left before the end: {named(error)}")
    elif own_code is not None:
        told.update(error=type(error).__name__, exit_code=own_code)
        if told["error"] in OWN_WORDS:
            told["message"] = words_of(error)
    elif lack is not None:
        told.update(
            error=type(lack).__name__, message=f"{words_of(lack)} ({place_of(error)})", exit_code=lack.exit_code
        )
    if isinstance(error, HangError):
        told.update(missing=list(error.missing), frozen=error.frozen)
    return told if virtual_rank is None else {**told, "rank": virtual_rank}


def _log_to(path: Path) -> None:
    with writing(path):
        log = open_to_write(path)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if log > 2:
        os.close(log)


# -- in the launcher


def launch(
    assignment: Assignment,
    layout: Layout,
    survives: bool,
    preload: tuple[str, ...] = (),
    started: Callable[[Crew], None] = lambda _: None,
    memory: int = 0,
) -> None:
    """Run to the end. `preload`: modules to import once, before workers are forked.

    `survives`: whether the others go on when a worker dies; all but replica 0 and servers may then. `started` is given
    the crew once it works, to stop it from elsewhere. `memory`: bytes that the largest worker is planned to need.
    Raises `WorkerFailedError` or `InterruptedRunError`, with every worker gone.
    """
    experiment = assignment.experiment
    processes = 1 if isinstance(experiment.hardware, VirtualHardware) else layout.world_size
    store = serve_store(experiment.hardware.port)
    told = {
        "experiment": to_yaml(experiment),
        "run": str(assignment.run),
        "allowed": list(assignment.allowed),
        "identity": assignment.identity,
        "resume": str(assignment.resume) if assignment.resume else None,
        "trace": str(assignment.trace) if assignment.trace else None,
        "world_size": layout.world_size,
        "store": store.endpoint,
    }

    def may_go_on(ended: Ended) -> bool:
        role = layout.role(ended.rank)
        if not survives or processes == 1 or role.kind == "server" or role.replica == 0:
            return False
        if ended.exit_code != WORKER_FAILED:
            return False  # diverged, out of disk, ...: it would come to the others too
        mark_lost(store, ended.rank)
        print(f"worker {ended.rank} {_what(ended)}; training goes on without it", file=sys.stderr, flush=True)
        return True

    crew = Crew(may_go_on, saves=not isinstance(experiment.hardware, VirtualHardware))
    try:
        crew.start(processes, worker_main, told, preload)
        started(crew)
        with _signals(crew):
            ended = crew.watch()
    finally:
        crew.kill()
        store.close()
    failures = [worker for worker in ended if worker.failed]
    if failures:
        raise _explain(failures, layout, assignment, crew.has_started, memory)
    if _is_complete(assignment.run):  # a signal may come in the last step, or later
        return
    if crew.stop_signal:
        name = signal.Signals(crew.stop_signal).name
        raise InterruptedRunError(f"stopped by {name}; {what_is_saved(assignment)}", 128 + crew.stop_signal)
    who = "the workers stopped before the last step though this command was not told to stop (a signal to a worker?)"
    raise WorkerFailedError(f"{who}; {what_is_saved(assignment)}", WORKER_FAILED, [])


def _is_complete(run: Path) -> bool:
    summary = RunDirectory(run).read_summary()
    return summary is not None and summary["status"] == "completed"


@contextmanager
def _signals(crew: Crew) -> Iterator[None]:
    """While the crew works, SIGINT and SIGTERM mean: save and stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, _: crew.stop(number)) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _what(ended: Ended) -> str:
    """What is said of a worker that failed; from its own words only what a terminal can show."""
    message = visible(ended.message)
    return message if ended.error in OWN_WORDS else f"failed: {message}"


def _explain(
    failures: list[Ended], layout: Layout, assignment: Assignment, started: bool, memory: int
) -> WorkerFailedError:
    cause = cause_among(failures)
    role, run = layout.role(cause.rank), assignment.run
    when = _last_step(run) if started else ", during start-up,"
    who = "" if cause.error in NOT_OF_ONE else f"{role.kind} {cause.rank}{when} "
    process = 0 if isinstance(assignment.experiment.hardware, VirtualHardware) else cause.rank
    details = [f"log: {run / 'logs' / f'worker-{process:03d}.log'}"]
    needs = ""
    if NO_MEMORY in cause.message:
        needs = (
            f"; by its plan a worker takes {memory / MIB:,.0f} MiB, and this host has {available() / MIB:,.0f} MiB free"
        )
    message = f"{who}{_what(cause)}{needs}; {what_is_saved(assignment)}"
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


def what_is_saved(assignment: Assignment) -> str:
    """The end of a sentence: what there is to go on from, and the command for it."""
    if isinstance(assignment.experiment.hardware, VirtualHardware):
        return "a virtual cluster saves nothing, the same command repeats the run"
    saved = last_checkpoint(assignment.run)
    if saved is None:
        return "nothing was saved yet"
    if (assignment.run / SWEEP_NOTE).exists():
        return f"saved: {saved.name}; go on with: paceline sweep --resume --name {assignment.run.parent.name}"
    allow = "".join(f" --allow-module {module}" for module in assignment.allowed)
    return f"saved: {saved.name}; resume with: paceline train --resume {assignment.run.name}{allow}"


def last_checkpoint(run: Path) -> Path | None:
    from .checkpoint import steps_of

    return next(reversed(steps_of(run / "checkpoints")), None)


def _last_step(run: Path) -> str:
    steps = [record["step"] for record in RunDirectory(run).records() if record["kind"] == "step"]
    return f", after step {steps[-1]}," if steps else ""
