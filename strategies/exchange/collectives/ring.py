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
messages.
"""

import torch
from torch import Tensor

from ....comm import Comm, Work
from ...base import Traffic, World
from .base import Collective


class Ring(Collective):
    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        return _Round(tensor, comm)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        return {"send": 2 * (world.replicas - 1) / world.replicas * nbytes}


class _Round(Work):
    def __init__(self, tensor: Tensor, comm: Comm) -> None:
        self._tensor, self._comm, self._done = tensor.detach(), comm, False

    def wait(self) -> None:
        if self._done:
            return
        self._done = True
        flat = self._tensor.contiguous().view(-1)  # a copy where the tensor has another order in memory
        self._go_round(list(flat.tensor_split(self._comm.size)))
        if flat.data_ptr() != self._tensor.data_ptr():
            self._tensor.copy_(flat.view(self._tensor.shape))

    def _go_round(self, chunks: list[Tensor]) -> None:
        workers, rank = self._comm.size, self._comm.rank
        arrived = torch.empty_like(chunks[0])  # the first chunk is as long as any
        with self._comm.timeline.named("share-reduce"):
            for step in range(workers - 1):
                mine = chunks[(rank - step - 1) % workers]
                sent = arrived[: len(mine)]
                self._exchange(chunks[(rank - step) % workers], sent)
                mine.add_(sent)
        with self._comm.timeline.named("share-only"):
            for step in range(workers - 1):
                self._exchange(chunks[(rank + 1 - step) % workers], chunks[(rank - step) % workers])

    def _exchange(self, outgoing: Tensor, incoming: Tensor) -> None:
        """Send a chunk to the next worker and fill the other from the one before."""
        comm = self._comm
        sending = comm.isend(outgoing, (comm.rank + 1) % comm.size) if len(outgoing) else None
        if len(incoming):
            comm.recv(incoming, (comm.rank - 1) % comm.size)
        if sending is not None:
            sending.wait()
