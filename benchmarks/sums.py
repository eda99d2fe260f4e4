"""Sums of two and of four workers of this host: through the memory that they share, against gloo over loopback.

Both are all-reduces of the same tensor by the same processes, in turn.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from paceline.comm.process import ProcessComm

from .measure import Outcome, alternate, in_processes

SIZES = {"25 MiB": (25 * 2**20, 4, "<= 0.30"), "64 KiB": (64 * 2**10, 100, "<= 0.5")}  # bytes, sums in a round, target


def sums_against_gloo(rounds: int) -> list[Outcome]:
    two, four = (in_processes(workers, _measure, rounds) for workers in (2, 4))
    return [*two, *four]


def _measure(comm: ProcessComm, rounds: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for name, (nbytes, times, target) in SIZES.items():
        tensor = torch.zeros(nbytes // 4)
        ours = partial(_milliseconds, comm, times, lambda tensor=tensor: comm.all_reduce(tensor).wait())
        peer = partial(_milliseconds, comm, times, lambda tensor=tensor: _by_gloo(comm, tensor))
        what = f"all-reduce of {name}, {comm.size} workers"
        outcomes.append(alternate(what, ours, peer, "gloo", target if comm.size == 2 else "<= 1.0", rounds))
    return outcomes


def _by_gloo(comm: ProcessComm, tensor: Tensor) -> None:
    assert comm.group is not None
    comm.group.allreduce([tensor]).wait()


def _milliseconds(comm: ProcessComm, times: int, do: Callable[[], None]) -> float:
    comm.barrier()
    start = time.perf_counter()
    for _ in range(times):
        do()
    return (time.perf_counter() - start) / times * 1e3
