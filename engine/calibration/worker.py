"""One of the processes that measure together."""

import json
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ...comm.connecting import connect
from ...comm.handshake import Endpoint
from ...comm.process import ProcessComm
from ...cost.kernels import Rates, Table
from .. import memory
from ..parent_death import die_with_parent
from . import beside, links
from .operators import cases, kept
from .timing import seconds_of, spread

TIMEOUT = 60.0
BUDGET, QUICK_BUDGET = 0.008, 0.002  # seconds for each case
REFERENCE = 384  # rows of the product that is timed again and again
AGAIN = 12  # cases from one time to the next
DISK = 2**26  # bytes


def main(
    rank: int, workers: int, store: Endpoint, conditions: list[tuple[int, int]], quick: bool, out: Connection
) -> None:
    """`conditions`: (threads, processes) to measure kernels under. Rank 0 tells what was found, and how far it is."""
    die_with_parent(9)
    comm = connect(store, rank, workers, TIMEOUT, torch.device("cpu"))
    memory.keep_freed()

    def tell(what: dict[str, Any]) -> None:
        if rank == 0:
            out.send_bytes(json.dumps(what).encode())

    found: dict[str, Any] = {"rates": [], "links": [], "spreads": []}
    for number, (threads, processes) in enumerate(conditions):
        tell({"doing": f"operators, {processes} of {threads} threads", "share": number / (len(conditions) + 1)})
        group = comm.split(0 if rank < processes else None)
        if group is not None:
            torch.set_num_threads(threads)
            found["rates"].append(_kernels(group, threads, processes, quick, found["spreads"]))
        comm.barrier()
    torch.set_num_threads(1)
    for size in range(2, workers + 1):
        tell({"doing": f"links, {size} workers", "share": (len(conditions) + size / workers) / (len(conditions) + 1)})
        group = comm.split(0 if rank < size else None)
        if group is not None:
            found["links"] += [[name, size, points] for name, points in links.measured(group, quick)]
        comm.barrier()
    if rank == 0:
        found["disk"] = _disk(DISK // 64 if quick else DISK)
        found["host_link"] = _host_link()
        tell({"found": found})
    comm.barrier()
    comm.close()


def _kernels(comm: ProcessComm, threads: int, processes: int, quick: bool, spreads: list[float]) -> dict[str, Any]:
    tables: dict[str, list[list[float]]] = {}
    steady: list[float] = []
    x = torch.randn(REFERENCE, REFERENCE)
    for number, case in enumerate(cases(quick)):
        if number % AGAIN == 0:
            steady.append(seconds_of(lambda i: x @ x, 0.01))
        if processes > 1:
            comm.barrier()
        took = seconds_of(kept(case.call), QUICK_BUDGET if quick else BUDGET)
        tables.setdefault(case.kernel.table, []).append([*case.kernel.sizes, took])
    spreads.append(spread(steady))
    rates = Rates(threads, processes, {name: Table(tuple(map(tuple, points))) for name, points in tables.items()}, {})
    costs = beside.costs(comm, rates, 40 if quick else 300, f"calibration {threads} {processes}")
    return {"threads": threads, "processes": processes, "tables": tables, "costs": costs}


def _disk(nbytes: int) -> dict[str, float]:
    """As checkpoints are written: to a file in the current directory, and forced to the disk."""
    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
        latency = min(_forced(file.fileno(), b"x") for _ in range(5))
        whole = _forced(file.fileno(), bytes(nbytes))
    return {"bandwidth": nbytes / max(whole - latency, 1e-9), "latency": latency}


def _forced(descriptor: int, content: bytes) -> float:
    start = time.perf_counter()
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)
    return time.perf_counter() - start


def _host_link() -> float | None:
    """Bytes a second from pinned memory to a device; None where there is none."""
    if not torch.cuda.is_available():
        return None
    there, here = (
        torch.empty(2**26, device="cuda", dtype=torch.uint8),
        torch.empty(2**26, dtype=torch.uint8).pin_memory(),
    )

    def copy(_: int) -> None:
        there.copy_(here, non_blocking=True)
        torch.cuda.synchronize()

    return 2**26 / seconds_of(copy, 0.1)


Told = Callable[[str, float], None]
