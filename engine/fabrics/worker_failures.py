"""Failures of workers on the virtual cluster: who fails at which second, and how long it takes to come back.

The moments are pure functions of the run's seed and the worker. interruptions.py says what a failure costs.
"""

from abc import abstractmethod
from collections.abc import Iterator
from heapq import merge
from itertools import count, repeat
from math import ceil, inf
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt, Le

from ...comm.network import ModelledNetwork, Place
from .failures import Duration, Failures, Seconds

Mean = Annotated[float, Gt(0), Le(1e12)]  # seconds; a rare failure of one of many workers


class WorkerFailures(Failures):
    """Workers that fail, lose what they had in memory, and come back."""

    def __init__(
        self,
        restart: Seconds,
        storage: Annotated[float, Gt(0)],
        interval: Duration | None,
    ) -> None:
        """
        Args:
            restart: seconds from a failure until the worker is back, without reading a checkpoint.
            storage: bytes a second at which a worker writes and reads a checkpoint.
            interval: seconds of training from one checkpoint to the next; None for Young's.
        """
        self.restart, self.storage, self.interval = restart, storage, interval

    @abstractmethod
    def moments(self, worker: int, network: ModelledNetwork) -> Iterator[float]:
        """Returns the moments at which a worker fails, without an end."""

    @abstractmethod
    def between(self, network: ModelledNetwork) -> float:
        """Returns the mean seconds from one failure in the run to the next; workers that fail together fail once."""

    @abstractmethod
    def between_of_worker(self, network: ModelledNetwork) -> float:
        """Returns the mean seconds from one failure of a worker to its next."""

    def longest(self) -> float:
        """Returns the most seconds from one failure in the run to the next: infinite where moments are random."""
        return inf

    def longest_of_worker(self, network: ModelledNetwork) -> float:
        """Returns the most seconds from one failure of a worker to its next."""
        return inf

    @abstractmethod
    def at_once(self, network: ModelledNetwork) -> tuple[int, str]:
        """Returns the most workers that fail at one moment, and the key that says so."""

    def of_run(self, network: ModelledNetwork) -> Iterator[float]:
        """Returns the moments at which somebody fails."""
        last = -1.0
        for moment in merge(*(self.moments(worker, network) for worker in range(network.count("worker")))):
            if moment > last:
                yield moment
            last = moment


class PoissonFailures(WorkerFailures):
    """Each worker fails by itself, after times that are exponential."""

    _place: Place = "worker"  # whose workers fail together

    def __init__(
        self,
        seed: int,
        mtbf: Mean,
        restart: Seconds = 60.0,
        storage: Annotated[float, Gt(0)] = 1e9,
        interval: Duration | None = None,
    ) -> None:
        """`mtbf`: mean seconds between failures of one worker. Others: see `WorkerFailures`."""
        super().__init__(restart, storage, interval)
        self._seed, self._mtbf = seed, mtbf

    def moments(self, worker: int, network: ModelledNetwork) -> Iterator[float]:
        return _exponential(self._seed, network.at(self._place, worker), self._mtbf)

    def between(self, network: ModelledNetwork) -> float:
        return self._mtbf / network.count(self._place)

    def between_of_worker(self, network: ModelledNetwork) -> float:
        return self._mtbf

    def at_once(self, network: ModelledNetwork) -> tuple[int, str]:
        return 1, f"failures.mtbf={self._mtbf:g}"


class Preemption(WorkerFailures):
    """A share of the workers, others each time, is taken away at regular moments."""

    def __init__(
        self,
        seed: int,
        every: Duration,
        share: Annotated[float, Gt(0), Le(1)] = 0.25,
        restart: Seconds = 60.0,
        storage: Annotated[float, Gt(0)] = 1e9,
        interval: Duration | None = None,
    ) -> None:
        """`every`: seconds from one wave to the next. `share`: of the workers, rounded up. Others: see
        `WorkerFailures`.
        """
        super().__init__(restart, storage, interval)
        self._seed, self._every, self._share = seed, every, share

    def moments(self, worker: int, network: ModelledNetwork) -> Iterator[float]:
        workers, taken = network.count("worker"), self._taken(network)
        for wave in count(1):
            drawn = np.random.default_rng((self._seed, wave, 0x5052)).permutation(workers)[:taken]
            if worker in drawn:
                yield wave * self._every

    def of_run(self, network: ModelledNetwork) -> Iterator[float]:
        return (wave * self._every for wave in count(1))

    def between(self, network: ModelledNetwork) -> float:
        return self._every

    def between_of_worker(self, network: ModelledNetwork) -> float:
        return self._every * network.count("worker") / self._taken(network)

    def longest(self) -> float:
        return self._every

    def longest_of_worker(self, network: ModelledNetwork) -> float:
        return self._every if self._taken(network) == network.count("worker") else inf

    def at_once(self, network: ModelledNetwork) -> tuple[int, str]:
        return self._taken(network), f"failures.share={self._share:g}"

    def _taken(self, network: ModelledNetwork) -> int:
        return ceil(self._share * network.count("worker") * (1 - 1e-12))  # 0.3 of 10 is more than 3 by rounding alone


class Rack(PoissonFailures):
    """Racks, or hosts, fail by themselves, each with all its workers."""

    def __init__(
        self,
        seed: int,
        mtbf: Mean,
        place: Literal["host", "rack"] = "rack",
        restart: Seconds = 60.0,
        storage: Annotated[float, Gt(0)] = 1e9,
        interval: Duration | None = None,
    ) -> None:
        """`mtbf`: mean seconds between failures of one rack or host. Others: see `WorkerFailures`."""
        super().__init__(seed, mtbf, restart, storage, interval)
        self._place = place

    def at_once(self, network: ModelledNetwork) -> tuple[int, str]:
        sizes = (len(network.members(self._place, [number])) for number in range(network.count(self._place)))
        return max(sizes), f"failures.place={self._place}"


def _exponential(seed: int, number: int, mean: float) -> Iterator[float]:
    """Yields the moments of a Poisson process: the same ones for the same seed and number."""
    draws, moment = np.random.default_rng((seed, number, 0x4641)), 0.0
    for _ in repeat(None):
        moment += mean * float(draws.standard_exponential())
        yield moment
