"""What processes take that compute, each for as long, and then meet in a sum: generic work, of no model.

Where there are as many cores as processes, they come to a meeting at slightly different times, and who came first has
to wake up. Where there are fewer, a core that has two of them runs one for as long as the system lets it, while others
wait for what it does; and it may have two while another core has none. Neither is in what operators take, nor in what
sums take that follow upon one another.
"""

import time
from collections.abc import Iterator
from statistics import median

import torch

from ...comm.process import ProcessComm
from .timing import seconds_of

SECONDS = (0.0005, 0.002, 0.008, 0.032)  # of computing from one meeting to the next, with a core of one's own
QUICK = (0.0005, 0.008)
SIDE, ENTRIES = 64, 256  # of the product that is computed; of the sum
BUDGET, QUICK_BUDGET = 0.25, 0.05  # seconds of computing in each case, of one process
LEAST, MOST = 10, 150  # meetings


def groups(workers: int) -> Iterator[tuple[int, int]]:
    """(processes, members): all of them meet; or they do in pairs."""
    for processes in range(2, workers + 1):
        yield processes, processes
        if processes % 2 == 0 and processes > 2:
            yield processes, 2


class Meeters:
    """One of so many processes that compute at once. `everyone`: with all of these; `met`: with those it meets."""

    def __init__(self, everyone: ProcessComm, met: ProcessComm, cores: int) -> None:
        self._everyone, self._met, self._cores = everyone, met, cores
        self._factors = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)
        self._summed = torch.zeros(ENTRIES)

    def seconds(self, quick: bool) -> Iterator[tuple[float, float]]:
        """Of computing, and of a step of computing and meeting: the median, as all of them saw it on average."""
        once = self._of_product()
        for computing in QUICK if quick else SECONDS:
            products = max(1, round(computing / once))
            budget = QUICK_BUDGET if quick else BUDGET
            self._everyone.barrier()
            took = [self._step(products) for _ in range(max(LEAST, min(MOST, int(budget / computing))))]
            told = torch.tensor([median(took)], dtype=torch.float64)
            self._everyone.all_reduce(told).wait()
            yield products * once, float(told) / self._everyone.size

    def _of_product(self) -> float:
        """As the first process takes for it while all cores are at work, and no core is shared; the same on all."""
        comm = self._everyone
        told = torch.zeros(1, dtype=torch.float64)
        comm.barrier()
        if comm.rank < self._cores:
            told[0] = seconds_of(lambda i: self._multiply(100), 0.05) / 100
        comm.barrier()
        comm.broadcast(told, 0).wait()
        return float(told)

    def _multiply(self, times: int) -> None:
        one, other, out = self._factors
        for _ in range(times):
            torch.mm(one, other, out=out)

    def _step(self, products: int) -> float:
        start = time.perf_counter()
        self._multiply(products)
        self._met.all_reduce(self._summed).wait()
        return time.perf_counter() - start
