"""Timing two things in turn, so that a machine whose speed drifts slows both alike."""

import json
import multiprocessing
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import torch

from paceline.comm.connecting import connect
from paceline.comm.handshake import Endpoint
from paceline.comm.process import ProcessComm
from paceline.comm.rendezvous import serve_store


@dataclass(frozen=True)
class Outcome:
    """Medians in milliseconds; `ratio` is the median of the ratios round by round; below 1, ours is faster."""

    name: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    ratio: float | None = None
    low: float | None = None  # the smallest and the largest ratio of a round
    high: float | None = None
    target: str = ""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def alternate(
    name: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    peer_name: str,
    target: str,
    rounds: int,
) -> Outcome:
    """Call `ours` and `peer`, each giving milliseconds, in turn; one round of each comes first and is not counted."""
    ours()
    peer()
    a: list[float] = []
    b: list[float] = []
    for i in range(rounds):
        first, second = (ours, peer) if i % 2 == 0 else (peer, ours)
        one, other = first(), second()
        a.append(one if i % 2 == 0 else other)
        b.append(other if i % 2 == 0 else one)
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    middle = statistics.median
    return Outcome(name, middle(a), middle(b), peer_name, middle(ratios), min(ratios), max(ratios), target)


def in_processes(workers: int, measure: Callable[[ProcessComm, int], list[Outcome]], rounds: int) -> list[Outcome]:
    """Returns the result of worker 0's `measure(comm, rounds)`, called in so many processes of one thread each."""
    store = serve_store(0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([measure.__module__])
    ours, theirs = context.Pipe(duplex=False)
    everyone = [(rank, workers, store.endpoint, measure, rounds, theirs) for rank in range(workers)]
    processes = [context.Process(target=_worker, args=mine) for mine in everyone]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0, "a benchmark worker failed; its traceback is above"
    store.close()
    return [Outcome(**plain) for plain in json.loads(ours.recv_bytes())]


def _worker(
    rank: int,
    workers: int,
    store: Endpoint,
    measure: Callable[[ProcessComm, int], list[Outcome]],
    rounds: int,
    out: Connection,
) -> None:
    torch.set_num_threads(1)
    comm = connect(store, rank, workers, 60.0, torch.device("cpu"))
    outcomes = measure(comm, rounds)
    if rank == 0:
        out.send_bytes(json.dumps([outcome.as_json() for outcome in outcomes]).encode())
    comm.close()


def process_milliseconds(command: list[str], runs: int) -> float:
    """Median wall time of a whole process, one run first that is not counted."""
    times: list[float] = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])
