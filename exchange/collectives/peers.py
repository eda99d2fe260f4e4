"""Exchanges in which all workers do the same: in pairs, or in groups of a prime number of workers.

K workers are numbered in mixed radix: K = f_1 f_2 ... with prime factors f_i in ascending order, and the i-th digit has
the stride d_i = f_1 ... f_(i-1). In the i-th exchange those meet whose numbers differ in that digit alone. For K = 2^q
these are the pairs r and r xor 2^i of recursive doubling.

So Ruefenacht, Bull and Booth 2017, "Generalisation of recursive doubling for AllReduce: Now with simulation", Parallel
Computing 69, do without what libraries do for other K: to hand the tensors of K - 2^q workers to others first, and the
sum back to them in the end, which costs two more steps of the whole tensor and leaves those workers idle meanwhile.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Meeting:
    stride: int
    factor: int  # workers that meet

    def group(self, rank: int) -> list[int]:
        """Returns the members of worker `rank`'s group, itself included, in order."""
        first = rank - rank // self.stride % self.factor * self.stride
        return list(range(first, first + self.stride * self.factor, self.stride))

    def pairs(self, workers: int) -> list[tuple[int, int]]:
        """(source, destination): everyone sends to all others of its group."""
        return [(rank, other) for rank in range(workers) for other in self.group(rank) if other != rank]


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
