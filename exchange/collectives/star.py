"""A star, as a parameter server makes sums (Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter
Server", OSDI): worker 0 is the server.

    The others send it their whole tensors, all at once; it adds them up in the order of ranks, and sends all the sum.

The tensors of K - 1 workers share its link, there and back: the incast that makes servers slow. Two steps are the
fewest that there are with K - 1 messages each.

Deviations from the paper: the server is a worker, too. Nothing moves before the sum is waited for.

Cost of a sum of S bytes among K workers: send 2 (K-1)/K S on average over the workers, in 2 (K-1)/K messages; the
server alone sends (K-1) S. Time: 2 (alpha + (K-1) S beta).

Use it among few workers, or to see what a parameter server's link has to carry: worker 0 receives (K-1) S at once.
"""

import torch
from torch import Tensor

from ...comm import Comm, Work
from ...strategies.core.cost import Traffic, World
from .base import Collective, Members, OnceWaitedFor, Phase, phase


class Star(Collective):
    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        return OnceWaitedFor(serve, tensor, comm)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        return {"send": 2 * (world.replicas - 1) / world.replicas * nbytes}

    def messages(self, nbytes: float, world: World) -> float:
        return 2 * (world.replicas - 1) / world.replicas

    def phases(self, nbytes: float, world: World) -> list[Phase]:
        others = range(1, world.replicas)
        if not others:
            return []
        return [
            phase("gather", nbytes, [(other, 0) for other in others], world),
            phase("broadcast", nbytes, [(0, other) for other in others], world),
        ]


def serve(x: Tensor, members: Members) -> None:
    if members.rank:
        with members.named("gather"):
            members.send(x, 0)
        members.recv(x, 0)
        return
    arrived, others = torch.empty_like(x), range(1, members.size)
    for other in others:
        members.recv(arrived, other)
        x.add_(arrived)
    with members.named("broadcast"):
        sends = [members.isend(x, other) for other in others]
        for send in sends:
            send.wait()
