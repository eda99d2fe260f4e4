"""One of the processes that measure together."""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ...comm.connecting import connect
from ...comm.handshake import Endpoint
from ...comm.key_values import ENDED
from ...comm.process import ProcessComm
from ...cost.kernels import KernelRates, KernelTable
from ..base import memory
from ..launch.worker_process import tie_to_launcher
from . import beside, links
from .operators import cases, kept
from .timing import TimedPasses, seconds_of, spread

TIMEOUT = 60.0
BUDGET, QUICK_BUDGET = 0.004, 0.002  # seconds for each case in a pass
REFERENCE = 384  # rows of the product that is timed again and again
AGAIN = 12  # cases from one time to the next
DISK = 2**26  # bytes
PASSES = 3  # over everything, as far apart as they are long; the last over those cases alone whose times differ


def main(
    rank: int, workers: int, store: Endpoint, conditions: list[tuple[int, int]], quick: bool, out: Connection
) -> None:
    """`conditions`: (threads, processes) to measure kernels under. Rank 0 tells what was found, and how far it is."""
    tie_to_launcher()
    try:
        _measure(rank, workers, store, conditions, quick, out)
    except Exception:
        time.sleep(ENDED)  # a killed command is no error of this process
        raise


def _measure(
    rank: int, workers: int, store: Endpoint, conditions: list[tuple[int, int]], quick: bool, out: Connection
) -> None:
    comm = connect(store, rank, workers, TIMEOUT, torch.device("cpu"))
    memory.keep_freed()

    def tell(what: dict[str, Any]) -> None:
        if rank == 0:
            out.send_bytes(json.dumps(what).encode())

    busy = [_Kernels(comm.split(0 if rank < processes else None), threads, quick) for threads, processes in conditions]
    linked = [_Links(comm.split(0 if rank < size else None), quick) for size in range(2, workers + 1)]
    everything = [*busy, *linked]
    for number in range(PASSES):
        for place, each in enumerate(everything):
            what = f"{each.what}, {['first', 'second', 'third'][number]} pass"
            tell({"doing": what, "share": (number + place / len(everything)) / PASSES})
            each.measure(number)
            comm.barrier()
    if rank == 0:
        tell({"found": _found(conditions, busy, linked) | {"disk": _disk(quick), "host_link": _host_link()}})
    comm.barrier()
    comm.close()


def _found(conditions: list[tuple[int, int]], busy: list["_Kernels"], linked: list["_Links"]) -> dict[str, Any]:
    measured = [each.passes for each in (*busy, *linked)]
    return {
        "rates": [
            {"threads": threads, "processes": processes, **each.found(threads, processes)}
            for (threads, processes), each in zip(conditions, busy, strict=True)
        ],
        "links": [link for each in linked for link in each.found()],
        "spreads": [spread(each.steady) for each in busy],
        "cases": sum(len(each.times) for each in measured),
        "differing": sum(len(each.differing) for each in measured),
    }


class _Kernels:
    """Times operators in one of several processes that compute at once, with so many threads."""

    def __init__(self, comm: ProcessComm | None, threads: int, quick: bool) -> None:
        """`comm`: with the others; None: this process is none of them."""
        self._comm, self._threads, self._quick = comm, threads, quick
        self.passes, self.steady = TimedPasses(), list[float]()
        self.what = "operators" if comm is None else f"operators, {comm.size} of {threads} threads"

    def measure(self, number: int) -> None:
        comm = self._comm
        if comm is None:
            return
        torch.set_num_threads(self._threads)
        every = list(cases(self._quick))
        wanted = set(range(len(every) + 1)) if number < PASSES - 1 else self._agreed(len(every))
        budget, x = QUICK_BUDGET if self._quick else BUDGET, torch.randn(REFERENCE, REFERENCE)
        for place in sorted(wanted - {len(every)}):
            if place % AGAIN == 0:
                self.steady.append(seconds_of(lambda i: x @ x, 0.01))
            if comm.size > 1:
                comm.barrier()
            self.passes.add(str(place), seconds_of(kept(every[place].make()), budget))
        if len(every) in wanted:
            key = f"calibration {comm.size} {self._threads} {number}"
            for name, seconds in beside.times(comm, 40 if self._quick else 150, key).items():
                self.passes.add(name, seconds)
        torch.set_num_threads(1)

    def _agreed(self, cases: int) -> set[int]:
        """The places of what the first process has found to differ: all measure together. The last: what is beside."""
        assert self._comm is not None
        differing = {min(int(name), cases) if name.isdecimal() else cases for name in self.passes.differing}
        return set(agreed(self._comm, [place in differing for place in range(cases + 1)]))

    def found(self, threads: int, processes: int) -> dict[str, Any]:
        tables: dict[str, list[list[float]]] = {}
        for place, case in enumerate(cases(self._quick)):
            tables.setdefault(case.kernel.table, []).append([*case.kernel.sizes, self.passes.middle(str(place))])
        rates = KernelRates(
            threads, processes, {name: KernelTable(tuple(map(tuple, points))) for name, points in tables.items()}, {}
        )
        middle = {name: self.passes.middle(name) for name in self.passes.times}
        return {"tables": tables, "costs": beside.costs(middle, rates)}


class _Links:
    """Times communication among so many workers."""

    def __init__(self, comm: ProcessComm | None, quick: bool) -> None:
        self._comm, self._quick = comm, quick
        self.passes = TimedPasses()
        self.what = "links" if comm is None else f"links, {comm.size} workers"

    def measure(self, number: int) -> None:
        if self._comm is None:
            return
        every = list(links.cases(self._comm, self._quick))
        differing = set(self.passes.differing)
        wanted = agreed(
            self._comm, [number < PASSES - 1 or f"{name} {nbytes}" in differing for name, nbytes, _ in every]
        )
        for name, nbytes, measure in [every[place] for place in wanted]:
            self.passes.add(f"{name} {nbytes}", measure(self._quick))

    def found(self) -> list[tuple[str, int, list[tuple[float, float]]]]:
        assert self._comm is not None
        size = self._comm.size
        points: dict[str, list[tuple[float, float]]] = {}
        for case in self.passes.times:
            name, nbytes = case.rsplit(" ", 1)
            points.setdefault(name, []).append((links.traffic(name, float(nbytes), size), self.passes.middle(case)))
        return [(name, size, each) for name, each in points.items()]


def agreed(comm: ProcessComm, wanted: Sequence[bool]) -> list[int]:
    """The places that the first process wants."""
    told = torch.tensor(wanted, dtype=torch.float32)
    comm.broadcast(told, 0).wait()
    return [place for place, each in enumerate(told.tolist()) if each]


def _disk(quick: bool) -> dict[str, float]:
    """Times the disk as checkpoints use it: writes to a file in the current directory, forced to the disk."""
    nbytes = DISK // 64 if quick else DISK
    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
        latency = min(_forced(file.fileno(), b"x") for _ in range(5))
        whole = min(_forced(file.fileno(), bytes(nbytes)) for _ in range(2))
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
