"""A ring in two phases, of messages from each worker to the next (Patarasuk and Yuan 2009, "Bandwidth Optimal
All-reduce Algorithms for Clusters of Workstations", Journal of Parallel and Distributed Computing 69(2)).

The tensor is cut into K chunks. In step s of the first phase, share-reduce, worker r

    sends chunk (r - s) mod K to worker r + 1 and adds what comes from worker r - 1 to its chunk (r - s - 1) mod K,

so that after K - 1 steps it has the whole sum of chunk (r + 1) mod K. In step s of the second phase, share-only, it

    sends chunk (r + 1 - s) mod K to worker r + 1 and takes what comes from worker r - 1 as its chunk (r - s) mod K.

Chunk c is added up in the order c, c + 1, ..., c - 1 of the workers, once, and copied: all have the same bits.

Deviations from the paper: chunks may differ by an entry where K does not divide their number; a tensor of fewer entries
than workers has empty chunks, which are not sent. Nothing moves before the sum is waited for.

Cost of a sum of S bytes among K workers: send 2 (K-1)/K S, on average over the workers where chunks differ, in 2 (K-1)
messages. Time: 2 (K-1) (alpha + S/K beta).

Use it for large tensors among a moderate number of workers: no algorithm sends fewer bytes, and its 2 (K-1) latencies
are small beside them.
"""

import torch
from torch import Tensor

from ...comm import Comm, Work
from ...strategies.core.cost import Traffic, World
from .base import Collective, Members, OnceWaitedFor, Phase, phase


class Ring(Collective):
    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        return OnceWaitedFor(go_round, tensor, comm)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        return {"send": 2 * (world.replicas - 1) / world.replicas * nbytes}

    def messages(self, nbytes: float, world: World) -> float:
        return 2 * (world.replicas - 1)

    def phases(self, nbytes: float, world: World) -> list[Phase]:
        k = world.replicas
        each = [(rank, (rank + 1) % k) for rank in range(k)]
        return [phase(name, nbytes / k, each, world, steps=k - 1) for name in ("share-reduce", "share-only") if k > 1]


def go_round(x: Tensor, members: Members) -> None:
    workers, rank = members.size, members.rank
    chunks = list(x.tensor_split(workers))
    arrived = torch.empty_like(chunks[0])  # the first chunk is as long as any
    with members.named("share-reduce"):
        for step in range(workers - 1):
            mine = chunks[(rank - step - 1) % workers]
            sent = arrived[: len(mine)]
            _exchange(chunks[(rank - step) % workers], sent, members)
            mine.add_(sent)
    with members.named("share-only"):
        for step in range(workers - 1):
            _exchange(chunks[(rank + 1 - step) % workers], chunks[(rank - step) % workers], members)


def _exchange(outgoing: Tensor, incoming: Tensor, members: Members) -> None:
    """Send a chunk to the next worker and fill the other from the one before."""
    sending = members.isend(outgoing, (members.rank + 1) % members.size)
    members.recv(incoming, (members.rank - 1) % members.size)
    sending.wait()
