"""Exchanges in which all workers do the same: in pairs, or in groups of a prime number of workers.

K workers are numbered in mixed radix: K = f_1 f_2 ... with prime factors f_i in ascending order, and the i-th digit has
the stride d_i = f_1 ... f_(i-1). In the i-th exchange those meet whose numbers differ in that digit alone. For K = 2^q
these are the pairs r and r xor 2^i of recursive doubling.

So Ruefenacht, Bull and Booth 2017, "Generalisation of recursive doubling for AllReduce: Now with simulation", Parallel
Computing 69, do without what libraries do for other K: to hand the tensors of K - 2^q workers to others first, and the
sum back to them in the end, which costs two more steps of the whole tensor and leaves those workers idle meanwhile.
"""

from dataclasses import dataclass

import numpy as np

from ...strategies.core.cost import World
from .base import Load, Phase, hosts_of


@dataclass(frozen=True)
class Meeting:
    stride: int
    factor: int  # workers that meet

    def group(self, rank: int) -> list[int]:
        """Returns the members of worker `rank`'s group, itself included, in order."""
        first = rank - rank // self.stride % self.factor * self.stride
        return list(range(first, first + self.stride * self.factor, self.stride))

    def phase(self, name: str, nbytes: float, world: World) -> Phase:
        """Returns the step in which each worker sends `nbytes` to all others of its group.

        A place with c members of a group of f sends c (f - c) messages of that group to others, and receives as many.
        """
        ranks = np.arange(world.replicas)
        groups = ranks - ranks // self.stride % self.factor * self.stride

        def load_of(places: np.ndarray) -> Load:
            many = int(places.max()) + 1
            there, members = np.unique(groups * many + places, return_counts=True)
            most = int(np.bincount(there % many, weights=members * (self.factor - members)).max())
            return Load(most, most)

        return Phase(name, 1, nbytes, load_of, hosts_of(world))


def exchanges(workers: int) -> list[Meeting]:
    found: list[Meeting] = []
    stride, factor = 1, 2
    while stride < workers:
        if workers // stride % factor == 0:
            found.append(Meeting(stride, factor))
            stride *= factor
        else:
            factor += 1
    return found
