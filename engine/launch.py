"""Start a run's workers on this host, watch over them, and say what went wrong.

Workers are forked from a server process that has torch and paceline imported already (multiprocessing's forkserver), so
that the second run in one process starts in a fraction of a second. Each tells us how it ended over a pipe of its own,
as JSON. No worker outlives us: the kernel kills workers when the fork server goes, which goes when we do.

The workers of the virtual cluster are threads of one such process.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from ..comm import Comm
from ..comm.board import mark_lost
from ..comm.network import Link, Network
from ..comm.process import connect
from ..comm.rendezvous import serve_store
from ..comm.virtual import Cluster
from ..tracking.run_directory import SWEEP_NOTE, RunDirectory
from .build import Parts, assemble
from .errors import InterruptedRunError, WorkerFailedError
from .experiment import VirtualHardware, from_yaml, to_yaml
from .layout import Layout
from .tied import LAUNCHER, tie
from .worker import Assignment, prepare_process, work

GRACE = 2.0  # seconds after the first failure in which others may say what they know, or end by themselves
ONE_PRESS = 0.3  # seconds within which two signals are one
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
WORKER_FAILED = 4
STARTING = threading.Lock()  # several runs may be started at once, from threads
SECONDARY = "PeerLostError"  # a worker that lost its peer is not the cause


@dataclass
class Ended:
    """How a worker ended: its own words, or the kernel's."""

    rank: int
    error: str = ""  # the exception's type
    message: str = ""
    exit_code: int = 0
    missing: list[int] = field(default_factory=list)  # whom it waited for too long

    @property
    def failed(self) -> bool:
        return self.exit_code != 0


# -- in the worker


def worker_main(rank: int, told: dict[str, Any], channel: Connection) -> None:
    """A local worker process. Ends with the exit code of what went wrong."""
    tie_to_launcher()
    _log_to(Path(told["run"]) / "logs" / f"worker-{rank:03d}.log")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what Ctrl-C means
    ended = {"error": "", "message": "", "exit_code": 0}
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
            run_virtual(assignment, parts, assignment.experiment.hardware)
        else:
            timeout = assignment.experiment.hardware.timeout
            comm = connect(told["store"], rank, told["world_size"], timeout, device)
            _stop_on_sigterm(comm.board.request_stop)
            work(assignment, parts, comm, device)
            comm.close()
    except BaseException as error:
        ended = describe(error)
        with suppress(OSError):  # a full disk takes no log either
            traceback.print_exc()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    channel.send_bytes(json.dumps(ended).encode())
    channel.close()
    os._exit(ended["exit_code"])  # not by way of destructors: after a failure they may wait for peers


def tie_to_launcher() -> None:
    """This child of the fork server dies when that does, and that dies with the launcher."""
    tie(signal.SIGKILL)
    _let_go_of_fork_server()
    if os.getppid() == 1:
        os._exit(4)  # the fork server went before we asked the kernel to tell us


def _stop_on_sigterm(request_stop: Callable[[], None]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: request_stop())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def run_virtual(assignment: Assignment, parts: Parts, hardware: VirtualHardware) -> None:
    """All workers of a virtual cluster, to the end. Raises what the first to fail raised."""
    network = Network(
        between=Link(**hardware.network.model_dump()),
        inside=Link(**hardware.inside.model_dump()),
        workers_per_host=hardware.workers_per_host,
        hosts_per_rack=hardware.hosts_per_rack,
        oversubscription=hardware.oversubscription,
    )
    cluster = Cluster(parts.layout.world_size, network)
    _stop_on_sigterm(cluster.request_stop)

    def work_as_one(comm: Comm) -> None:
        strategy, sync = parts.make_pair()
        work(assignment, replace(parts, strategy=strategy, sync=sync), comm, torch.device("cpu"))

    cluster.run(work_as_one)


def _let_go_of_fork_server() -> None:
    """The fork server goes once nobody holds a certain pipe; multiprocessing hands it to every child too.

    Only the launcher shall hold it: a frozen worker would keep the fork server, and so itself, beyond its death.
    """
    server: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as JSON."""
    rank = getattr(error, "virtual_rank", None)
    return {
        **({} if rank is None else {"rank": rank}),
        "error": type(error).__name__,
        "message": " ".join(str(error).split()),
        "exit_code": getattr(error, "exit_code", 4),
        "missing": list(getattr(error, "missing", ())),
    }


def _log_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
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
    started: Callable[["Crew"], None] = lambda _: None,
) -> None:
    """Run to the end. `preload`: modules to import once, before workers are forked.

    `survives`: whether the others go on when a worker dies; all but replica 0 and servers may then. `started` is given
    the crew once it works, to stop it from elsewhere.
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
        reason = ended.message if ended.error in ("Killed", "Exited") else f"failed: {ended.error}: {ended.message}"
        print(f"worker {ended.rank} {reason}; training goes on without it", file=sys.stderr, flush=True)
        return True

    crew = Crew(may_go_on, saves=not isinstance(experiment.hardware, VirtualHardware))
    try:
        crew.start(processes, told, preload)
        started(crew)
        with _signals(crew):
            ended = crew.watch()
    finally:
        crew.kill()
        store.close()
    failures = [worker for worker in ended if worker.failed]
    if failures:
        raise _explain(failures, layout, assignment)
    if _is_complete(assignment.run):  # the signal may come in the last step, or later
        return
    if crew.stop_signal:
        name = signal.Signals(crew.stop_signal).name
        raise InterruptedRunError(f"stopped by {name}; {what_is_saved(assignment)}", 128 + crew.stop_signal)
    who = "the workers stopped before the last step though this command was not told to stop (a signal to a worker?)"
    raise WorkerFailedError(f"{who}; {what_is_saved(assignment)}", WORKER_FAILED, [])


def _is_complete(run: Path) -> bool:
    summary = RunDirectory(run).read_summary()
    return summary is not None and summary["status"] == "completed"


class Crew:
    """The worker processes of one run."""

    def __init__(self, may_go_on: Callable[[Ended], bool], saves: bool) -> None:
        """`may_go_on`: asked about each worker that failed, whether it is the end of the run. `saves`: checkpoints."""
        self._saves = saves
        self.stop_signal, self._stopped_at = 0, 0.0
        self._may_go_on = may_go_on
        self._processes: list[ForkServerProcess] = []
        self._channels: list[Connection] = []

    def start(self, world_size: int, told: dict[str, Any], preload: tuple[str, ...]) -> None:
        context = multiprocessing.get_context("forkserver")
        with STARTING, without_main():
            # torch.optim imports torch._dynamo on first use
            start_fork_server("paceline.engine.launch", "torch._dynamo", *preload)
            for rank in range(world_size):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=worker_main, args=(rank, told, theirs), name=f"paceline-worker-{rank}", daemon=True
                )
                try:
                    process.start()
                except (EOFError, ConnectionError):
                    raise WorkerFailedError(
                        f"worker {rank} cannot begin: the fork server was killed", WORKER_FAILED, []
                    ) from None
                theirs.close()
                self._processes.append(process)
                self._channels.append(ours)

    def watch(self) -> list[Ended]:
        """Wait until all have ended, or one has failed and the others had their grace."""
        ended: dict[int, Ended] = {}
        lost: set[int] = set()
        deadline = None
        while len(ended) < len(self._processes):
            going = {self._processes[r].sentinel: r for r in range(len(self._processes)) if r not in ended}
            for sentinel in wait(list(going), timeout=0.2):
                assert isinstance(sentinel, int)
                rank = going[sentinel]
                ended[rank] = how = self._how(rank)
                if how.failed and deadline is None and self._may_go_on(how):
                    lost.add(rank)
                elif how.failed and deadline is None:
                    deadline = time.monotonic() + GRACE
            if deadline is not None and time.monotonic() > deadline:
                break
        return [how for rank, how in ended.items() if rank not in lost]

    def _how(self, rank: int) -> Ended:
        process, channel = self._processes[rank], self._channels[rank]
        process.join()
        if channel.poll():
            try:
                return Ended(**{"rank": rank, **json.loads(channel.recv_bytes())})
            except EOFError:
                pass
        code = process.exitcode or 0
        if code < 0:
            name = signal.Signals(-code).name
            return Ended(rank, "Killed", f"was killed by {name}", 4)
        return Ended(rank, "Exited", f"ended with status {code} and no word", 4)

    def stop(self, number: int) -> None:
        """The first signal asks the workers to save and stop; the second kills them."""
        if self.stop_signal and time.monotonic() - self._stopped_at < ONE_PRESS:
            return  # `timeout` and some shells signal the process and then its group
        if self.stop_signal:
            self.kill()
            print("killed" + ("; the last checkpoint is kept" if self._saves else ""), file=sys.stderr, flush=True)
            os._exit(128 + number)
        saving = ", saving" if self._saves else ""
        print(f"\nstopping after this step{saving}; once more to leave at once", file=sys.stderr, flush=True)
        self.ask_to_stop(number)

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        """After the step that they are in."""
        self.stop_signal, self._stopped_at = number, time.monotonic()
        for process in self._processes:
            if process.is_alive():
                process.terminate()

    def kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()


def start_fork_server(*preload: str) -> None:
    """Unless it runs. Ctrl-C, and SIGTERM to a group, reach us all: it blocks them, a worker until it can save."""
    multiprocessing.set_forkserver_preload(["paceline.engine.tied", *preload, "paceline.engine.fork_server"])
    resource_tracker.ensure_running()  # first: it unblocks what it blocks
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        forkserver.ensure_running()
    finally:
        del os.environ[LAUNCHER]
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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


@contextmanager
def without_main() -> Iterator[None]:
    """Children must not import the caller's script again: a user's model is named by module, never by __main__."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _explain(failures: list[Ended], layout: Layout, assignment: Assignment) -> WorkerFailedError:
    cause = cause_among(failures)
    role, run = layout.role(cause.rank), assignment.run
    own_words = cause.error in ("Killed", "Exited", "HangError", "DivergedError")
    what = cause.message if own_words else f"{cause.error}: {cause.message}"
    who = "" if cause.error in ("HangError", "DivergedError") else f"{role.kind} {cause.rank}{_last_step(run)} "
    process = 0 if isinstance(assignment.experiment.hardware, VirtualHardware) else cause.rank
    details = [f"log: {run / 'logs' / f'worker-{process:03d}.log'}"]
    message = f"{who}{'failed: ' if not own_words else ''}{what}; {what_is_saved(assignment)}"
    return WorkerFailedError(message, cause.exit_code, details)


def cause_among(failures: list[Ended]) -> Ended:
    """A worker's own error before a kill, both before those who only lost a peer.

    Of those that waited for one another too long it is one that waited for none of them.
    """
    rank_of_cause = {"Killed": 1, "Exited": 1, SECONDARY: 2}
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
    from ..tracking.run_directory import RunDirectory

    steps = [record["step"] for record in RunDirectory(run).records() if record["kind"] == "step"]
    return f", after step {steps[-1]}," if steps else ""
