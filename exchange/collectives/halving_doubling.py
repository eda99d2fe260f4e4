"""Rabenseifner's algorithm: recursive halving, then recursive doubling (Rabenseifner 2004, "Optimization of Collective
Reduction Operations", ICCS; Thakur, Rabenseifner and Gropp 2005, section 4.5).

The tensor is cut into K chunks. In the first phase, reduce-scatter, pairs of workers r and r xor 2^i that have the same
chunks to add up

    share them out: each sends the other's half, and adds what comes to its own,

so that after log2 K steps each has the whole sum of one chunk. The second phase, all-gather, goes the same way back:
in each step a worker sends what it has the whole sum of, and has twice as much then.

Any K: in the step of a prime factor f of K, f workers share their chunks out into f parts (peers.py), and each adds
what comes from the others to its own part in the order of ranks. Each chunk is added up once, and copied: all have the
same bits.

Deviations from the paper: that of peers.py where K is not a power of two; neighbours halve first, so that workers of
one host send each other the most. Chunks may differ by an entry, and empty ones are not sent. Nothing moves before the
sum is waited for.

Cost of a sum of S bytes among K = f_1 f_2 ... workers: send 2 (K-1)/K S, on average over the workers where chunks
differ, in 2 sum_i (f_i - 1) messages. Time: 2 (q alpha + (K-1)/K S beta) for q factors; q = log2 K for a power of two.

Use it for tensors of middling size, and for large ones where workers are many: a ring's bytes in log2 K steps, of
partners that are far apart.
"""

from itertools import accumulate

import torch
from torch import Tensor

from ...comm import Comm, Work
from ...strategies.core.cost import Traffic, World
from .base import Collective, Members, OnceWaitedFor, Phase
from .peers import exchanges


class HalvingDoubling(Collective):
    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        return OnceWaitedFor(halve_and_double, tensor, comm)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        return {"send": 2 * (world.replicas - 1) / world.replicas * nbytes}

    def messages(self, nbytes: float, world: World) -> float:
        return 2 * sum(exchange.factor - 1 for exchange in exchanges(world.replicas))

    def phases(self, nbytes: float, world: World) -> list[Phase]:
        halving = [
            each.phase("reduce-scatter", nbytes / (each.stride * each.factor), world)
            for each in exchanges(world.replicas)
        ]
        return [*halving, *(each.backwards("all-gather") for each in halving[::-1])]


def halve_and_double(x: Tensor, members: Members) -> None:
    bounds = [0, *accumulate(len(chunk) for chunk in x.tensor_split(members.size))]

    def part(first: int, chunks: int) -> Tensor:
        return x[bounds[first] : bounds[first + chunks]]

    steps = exchanges(members.size)
    first, chunks = 0, members.size  # those that this worker still adds up; then, that it has the sum of
    arrived = torch.empty_like(part(0, -(-chunks // steps[0].factor)))
    with members.named("reduce-scatter"):
        for exchange in steps:
            group = exchange.group(members.rank)
            chunks //= exchange.factor
            parts = [part(first + i * chunks, chunks) for i in range(exchange.factor)]
            me = group.index(members.rank)
            sends = [members.isend(parts[i], other) for i, other in enumerate(group) if i != me]
            for other in group[:me] + group[me + 1 :]:
                sent = arrived[: len(parts[me])]
                members.recv(sent, other)
                parts[me].add_(sent)
            for send in sends:
                send.wait()
            first += me * chunks
    with members.named("all-gather"):
        for exchange in reversed(steps):
            group = exchange.group(members.rank)
            me = group.index(members.rank)
            whole = first - me * chunks
            sends = [members.isend(part(first, chunks), other) for i, other in enumerate(group) if i != me]
            for i, other in enumerate(group):
                if i != me:
                    members.recv(part(whole + i * chunks, chunks), other)
            for send in sends:
                send.wait()
            first, chunks = whole, chunks * exchange.factor
