"""Clocks that count each worker's steps, and know the slowest worker's count."""

from collections import Counter
from math import inf


class Clocks:
    """Every worker's clock starts at 0. Each call takes constant time, but for the clocks that `slowest` goes on by."""

    def __init__(self, workers: int) -> None:
        self._clock = [0] * workers
        self._standing_at = Counter({0: workers})  # clock -> workers that are going
        self.going = set(range(workers))
        self.slowest: float = 0  # of those that are going; infinite when none is

    def of(self, worker: int) -> int:
        return self._clock[worker]

    def tick(self, worker: int) -> None:
        self._standing_at[self._clock[worker]] -= 1
        self._clock[worker] += 1
        self._standing_at[self._clock[worker]] += 1
        self._follow()

    def leave(self, worker: int) -> None:
        """Removes a worker, so that it holds nobody back any more. Leaving twice changes nothing."""
        if worker in self.going:
            self.going.remove(worker)
            self._standing_at[self._clock[worker]] -= 1
            self._follow()

    def _follow(self) -> None:
        if not self.going:
            self.slowest = inf
        while self.going and not self._standing_at[int(self.slowest)]:
            del self._standing_at[int(self.slowest)]
            self.slowest += 1
