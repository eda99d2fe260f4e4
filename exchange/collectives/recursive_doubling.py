"""Recursive doubling (Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in
MPICH", International Journal of High Performance Computing Applications 19(1), section 4.5).

In step i workers r and r xor 2^i

    send each other their whole sums so far, and add what comes,

so that after log2 K steps all have the sum of all: the fewest steps there are, for the price of the whole tensor in
each. It is for small tensors.

Any K: in the step of a prime factor f of K, f workers send each other their sums (peers.py). Everyone adds up those of
its group in the order of ranks, so that all have the same bits.

Deviations from the paper: that of peers.py where K is not a power of two. Nothing moves before the sum is waited for.

Cost of a sum of S bytes among K = f_1 f_2 ... workers: send sum_i (f_i - 1) S, in sum_i (f_i - 1) messages. Time:
sum_i (alpha + (f_i - 1) S beta). For K = 2^q: send q S in q messages, and q (alpha + S beta).

Use it for the smallest tensors, where nothing but the number of latencies counts.
"""

import torch
from torch import Tensor

from ...comm import Comm, Work
from ...strategies.core.cost import Traffic, World
from .base import Collective, Members, OnceWaitedFor, Phase
from .peers import exchanges


class RecursiveDoubling(Collective):
    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        return OnceWaitedFor(double, tensor, comm)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        return {"send": self.messages(nbytes, world) * nbytes}

    def messages(self, nbytes: float, world: World) -> float:
        return sum(exchange.factor - 1 for exchange in exchanges(world.replicas))

    def phases(self, nbytes: float, world: World) -> list[Phase]:
        return [exchange.phase("exchange", nbytes, world) for exchange in exchanges(world.replicas)]


def double(x: Tensor, members: Members) -> None:
    total, arrived = torch.empty_like(x), torch.empty_like(x)
    with members.named("exchange"):
        for exchange in exchanges(members.size):
            group = exchange.group(members.rank)
            sends = [members.isend(x, other) for other in group if other != members.rank]
            for i, other in enumerate(group):
                if other != members.rank:
                    members.recv(arrived, other)
                term = x if other == members.rank else arrived
                # total = x_1 + x_2 + ..., in the order of ranks
                total.copy_(term) if i == 0 else total.add_(term)
            for send in sends:
                send.wait()
            x.copy_(total)
