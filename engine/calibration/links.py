"""Times communication among several workers of this host: seconds by the bytes that leave a worker."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch

from ...comm import Comm
from ...comm.process import ProcessComm

SIZES = (2**10, 2**14, 2**17, 2**20, 2**23)  # bytes of a worker's tensor
QUICK = (2**10, 2**17)


def operations(comm: ProcessComm) -> dict[str, Callable[[torch.Tensor], object]]:
    """Returns the operations to measure among all of `comm`, by name."""
    group, size = comm.group, comm.size
    assert group is not None
    after, before = (comm.rank + 1) % size, (comm.rank - 1) % size

    def ring(tensor: torch.Tensor) -> None:
        sent = comm.isend(tensor, after)
        comm.recv(torch.empty_like(tensor), before)
        sent.wait()

    def scatter(tensor: torch.Tensor) -> None:
        comm.reduce_scatter(tensor[: len(tensor) // size * size])

    return {
        "all_reduce": lambda tensor: comm.all_reduce(tensor).wait(),  # through shared memory where it can be had
        "gloo": lambda tensor: group.allreduce([tensor]).wait(),
        "send": ring,
        "all_gather": comm.all_gather,
        "reduce_scatter": scatter,
        "broadcast": lambda tensor: comm.broadcast(tensor, 0).wait(),
    }


def traffic(operation: str, nbytes: float, workers: int) -> float:
    """Bytes that leave a worker, as the ledger counts them; of a broadcast those of the whole tensor."""
    match operation:
        case "all_reduce" | "gloo":
            return 2 * (workers - 1) / workers * nbytes
        case "all_gather":
            return (workers - 1) * nbytes
        case "reduce_scatter":
            return (workers - 1) / workers * nbytes
        case _:
            return nbytes


def cases(comm: ProcessComm, quick: bool) -> Iterator[tuple[str, int, Callable[[bool], float]]]:
    """Yields each operation and size: its name, the bytes of a worker's tensor, and a function that measures it, the
    same on all.
    """
    for name, call in operations(comm).items():
        for nbytes in QUICK if quick else SIZES:
            yield name, nbytes, partial(_seconds, comm, call, nbytes)


def _seconds(comm: Comm, operation: Callable[[torch.Tensor], object], nbytes: int, quick: bool) -> float:
    """The mean over workers of the median of calls; how many is the same on all."""
    tensor = torch.zeros(nbytes // 4)

    def call() -> object:
        return operation(tensor)

    for _ in range(3):
        call()
    comm.barrier()
    start = time.perf_counter()
    call()
    mine = torch.tensor([time.perf_counter() - start])
    comm.all_reduce(mine, "max").wait()
    times = int(min(100, max(3 if quick else 7, (0.02 if quick else 0.06) / float(mine))))
    took: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    told = torch.tensor([median(took)])
    comm.all_reduce(told).wait()
    return float(told) / comm.size
