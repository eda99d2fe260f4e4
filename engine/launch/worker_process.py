"""The process of a worker on this host, from its first line to the exit code with which it ends."""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ...comm.errors import HangError
from ...comm.handshake import Endpoint
from ...compat import fork_server
from ...compat.dynamo import without_dynamo
from ...tracking.files import open_to_write
from ...tracking.records import PlanSummary
from ...tracking.run_directory import writing
from ..base.failures import OWN_WORDS, exit_code_of, lack_of, named, place_of, traceback_of, words_of
from ..base.forked import children_leave
from ..base.parent_death import die_with_parent
from ..base.signals import STOP_SIGNALS
from ..config.experiment import from_plain
from ..fabrics.assignment import Assignment
from ..planning.build import assemble
from ..training.worker import prepare_process
from .local_workers import READY, WORKER_FAILED

if TYPE_CHECKING:
    from .launcher import Launcher


def told_of(assignment: Assignment, world_size: int, store: Endpoint) -> dict[str, Any]:
    """Returns the message for each process, in types that can be sent."""
    return {
        "experiment": assignment.experiment.model_dump(),
        "run": str(assignment.run),
        "allowed": list(assignment.allowed),
        "identity": assignment.identity,
        "predicted": asdict(assignment.predicted),
        "resume": str(assignment.resume) if assignment.resume else None,
        "trace": str(assignment.trace) if assignment.trace else None,
        "timetable": assignment.timetable,
        "witness": assignment.probe,
        "devices": assignment.devices,
        "samples": str(assignment.samples) if assignment.samples else None,
        "world_size": world_size,
        "store": store,
    }


@without_dynamo()
def worker_main(launcher: "Launcher", rank: int, told: dict[str, Any], channel: Connection) -> None:
    """A worker's process, which was told `told_of(...)`. Ends with the exit code of what went wrong."""
    tie_to_launcher()
    if told["devices"] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = told["devices"]  # before CUDA is first asked for
    try:
        log_to(Path(told["run"]) / "logs" / f"worker-{rank:03d}.log")
    except Exception as error:  # without a log, standard error is still the launcher's: no traceback
        _leave(channel, describe(error))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what Ctrl-C means
    ended = {"error": "", "message": "", "exit_code": 0}
    say_started = _once(lambda: channel.send_bytes(json.dumps(READY).encode()))
    try:
        assignment = Assignment(
            from_plain(told["experiment"]),
            Path(told["run"]),
            tuple(told["allowed"]),
            told["identity"],
            PlanSummary(**told["predicted"]),
            Path(told["resume"]) if told["resume"] else None,
            Path(told["trace"]) if told["trace"] else None,
            told["timetable"],
            told["witness"],
            told["devices"],
            Path(told["samples"]) if told["samples"] else None,
        )
        parts = assemble(assignment.experiment, assignment.allowed, told["world_size"])
        device = prepare_process(assignment.experiment, parts, rank)
        with children_leave():
            launcher.work(rank, told["store"], assignment, parts, device, say_started)
    except BaseException as error:
        ended = describe(error, launcher.failed_rank())
        with suppress(OSError):  # a full disk takes no log either
            print(traceback_of(error), file=sys.stderr)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    _leave(channel, ended)


def _leave(channel: Connection, ended: dict[str, Any]) -> NoReturn:
    """Leaves without running destructors: after a failure they may wait for peers."""
    with suppress(OSError):
        channel.send_bytes(json.dumps(ended).encode())
    os._exit(ended["exit_code"])


def tie_to_launcher() -> None:
    """Makes this child of the fork server die when the server dies, which dies with the launcher."""
    die_with_parent(signal.SIGKILL)
    fork_server.let_go()  # a frozen worker would keep it, and so itself, beyond its launcher's death
    if os.getppid() == 1:
        os._exit(4)  # the fork server went before we asked the kernel to tell us


def _once(do: Callable[[], object]) -> Callable[[], None]:
    """`do` the first time that it is called."""
    left = [do]

    def instead() -> None:
        if left:
            left.pop()()

    return instead


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


def log_to(path: Path) -> None:
    """Have this process print to the end of a file from now on. Raises `StorageError`."""
    with writing(path):
        log = open_to_write(path)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if log > 2:
        os.close(log)


def stop_on_sigterm(request_stop: Callable[[], None]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: request_stop())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
