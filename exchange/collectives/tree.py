"""A binomial tree: reduce to worker 0, then broadcast from it (Thakur, Rabenseifner and Gropp 2005, "Optimization of
Collective Communication Operations in MPICH", International Journal of High Performance Computing Applications 19(1),
sections 4.1 and 4.4).

A binomial tree of 2^j workers is one of 2^(j-1) whose root has another one's root as its last child. In the reduction a
worker

    adds what comes from its children, of the smallest tree to the largest, and sends the sum to its parent;

in the broadcast the sum goes back the same way, to the largest tree first.

Any K: the children of worker 0 are the roots of full binomial trees, one for each binary digit 1 of K - 1. So each
child's sum comes in a step of its own, and no two meet on a link.

Deviations from the papers: that, where K is not a power of two. Nothing moves before the sum is waited for.

Cost of a sum of S bytes among K workers: send 2 (K-1)/K S on average over the workers, in 2 (K-1)/K messages; worker 0
alone sends log2 K times S. Time: 2 ceil(log2 K) (alpha + S beta).

Use it for small tensors where latency decides and worker 0's link is fast enough for whole tensors, or where the sum
shall come from one place.
"""

from functools import lru_cache

import torch
from torch import Tensor

from ...comm import Comm, Work
from ...strategies.core.cost import Traffic, World
from .base import Collective, Members, OnceWaitedFor, Phase, phase


class Tree(Collective):
    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        return OnceWaitedFor(reduce_and_broadcast, tensor, comm)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        return {"send": 2 * (world.replicas - 1) / world.replicas * nbytes}

    def messages(self, nbytes: float, world: World) -> float:
        return 2 * (world.replicas - 1) / world.replicas

    def phases(self, nbytes: float, world: World) -> list[Phase]:
        up = [phase("reduce", nbytes, pairs, world) for pairs in steps(world.replicas)]
        return [*up, *(each.backwards("broadcast") for each in up[::-1])]


def steps(workers: int) -> list[list[tuple[int, int]]]:
    """(child, parent) of the messages of each step of the reduction."""
    found: list[list[tuple[int, int]]] = [[] for _ in range((workers - 1).bit_length())]
    for rank in range(workers):
        for step, child in children(rank, workers):
            found[step].append((child, rank))
    return found


def children(rank: int, workers: int) -> list[tuple[int, int]]:
    """(step, child), in the order of the reduction."""
    if rank == 0:
        return list(_roots(workers))
    place, size = _place(rank, workers)
    lowest = place & -place or size  # the tree of worker `place` has as many workers
    return [(step, rank + (1 << step)) for step in range(lowest.bit_length() - 1)]


@lru_cache(maxsize=64)
def _roots(workers: int) -> tuple[tuple[int, int], ...]:
    """(step, child) of worker 0."""
    rest, first = workers - 1, 1
    found: list[tuple[int, int]] = []
    for step in range(rest.bit_length()):
        if rest >> step & 1:
            found.append((step, first))
            first += 1 << step
    return tuple(found)


def parent(rank: int, workers: int) -> int:
    """Returns the parent of worker `rank`; 0 for the roots of the trees below worker 0. Not for worker 0 itself."""
    place, _ = _place(rank, workers)
    return rank - (place & -place) if place else 0


def _place(rank: int, workers: int) -> tuple[int, int]:
    """Returns the worker's position in its tree below worker 0: (its number there, workers of that tree)."""
    for step, first in _roots(workers):
        if first <= rank < first + (1 << step):
            return rank - first, 1 << step
    raise AssertionError(f"no worker {rank} of {workers}")


def reduce(x: Tensor, members: Members) -> None:
    """x <- the sum, on worker 0; a part of it on others."""
    arrived = torch.empty_like(x)
    with members.named("reduce"):
        for _, child in children(members.rank, members.size):
            members.recv(arrived, child)
            x.add_(arrived)
        if members.rank:
            members.send(x, parent(members.rank, members.size))


def broadcast(x: Tensor, members: Members) -> None:
    """x <- worker 0's."""
    with members.named("broadcast"):
        if members.rank:
            members.recv(x, parent(members.rank, members.size))
        for _, child in reversed(children(members.rank, members.size)):
            members.send(x, child)  # one after the other: the largest tree must not wait for the others


def reduce_and_broadcast(x: Tensor, members: Members) -> None:
    reduce(x, members)
    broadcast(x, members)
