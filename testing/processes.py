"""Real worker processes for checks and tests: each joins a ProcessComm over a loopback store and runs one function."""

import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Collection
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..comm.connecting import connect
from ..comm.handshake import Endpoint
from ..comm.rendezvous import serve_store
from ..strategies.core.state import from_bytes, to_bytes

# Modules that worker processes need; torch._dynamo comes with the first optimizer.
PRELOADED = ["paceline.testing.training", "torch._dynamo"]
PR_SET_PDEATHSIG = 1
GRACE = 3.0  # seconds for the cause of a failure to show after its first effect


class WorkerError(AssertionError):
    """A worker's function raised; the message holds its traceback."""


@cache
def start_fork_server() -> None:
    """Starts the server that workers are forked from, which imports `PRELOADED` for them.

    Returns once it has imported all, so that no worker's timeout runs out meanwhile.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    first = multiprocessing.get_context("forkserver").Process(target=_nothing)
    first.start()
    first.join()


def _nothing() -> None: ...


def run_workers(
    size: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout: float = 20.0,
    patience: float = 60.0,
    lost: Collection[int] = (),
) -> list[Any]:
    """Run `function(comm, *arguments)` in `size` worker processes; returns what each returned, by rank.

    `function` is a module's own; what it returns must be a tree that strategies.state can hold. `timeout`: the
    comm's, in seconds. `patience`: seconds for all to end. `lost`: the ranks that end without a result (None).
    Raises `WorkerError`. All processes are gone on return.
    """
    start_fork_server()
    store = serve_store(0)
    context = multiprocessing.get_context("forkserver")
    channels: dict[Connection, int] = {}
    processes = []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            given = (rank, size, store.endpoint, timeout, theirs, function, arguments)
            process = context.Process(target=_main, args=given)
            process.start()
            theirs.close()
            processes.append(process)
            if rank not in lost:
                channels[ours] = rank
        return _collect(channels, size, time.monotonic() + patience)
    finally:
        for process in processes:
            process.kill()
            process.join()
        store.close()


def _collect(channels: dict[Connection, int], size: int, deadline: float) -> list[Any]:
    results: list[Any] = [None] * size
    failures: dict[int, str] = {}
    while channels:
        ready = wait(list(channels), timeout=max(deadline - time.monotonic(), 0))
        if not ready and not failures:
            raise WorkerError(f"workers {sorted(channels.values())} did not end")
        if not ready:
            break
        for channel in ready:
            assert isinstance(channel, Connection)
            rank = channels.pop(channel)
            try:
                told = from_bytes(channel.recv_bytes())
            except EOFError:
                told = {"error": "died without a word"}
            if "error" in told:
                failures[rank] = told["error"]
                deadline = min(deadline, time.monotonic() + GRACE)
            else:
                results[rank] = told["result"]
    if failures:
        cause = min(failures, key=lambda rank: ("PeerLostError" in failures[rank], rank))
        raise WorkerError(f"worker {cause}: {failures[cause]}")
    return results


def _main(
    rank: int,
    size: int,
    store: Endpoint,
    timeout: float,
    channel: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    try:
        comm = connect(store, rank, size, timeout, torch.device("cpu"))
        told = {"result": function(comm, *arguments)}
        channel.send_bytes(to_bytes(told))
    except BaseException:
        channel.send_bytes(to_bytes({"error": traceback.format_exc()}))
    signal.pause()  # peers may still need our end of the connection; run_workers kills us
    os._exit(0)
