"""The fabric's own all-reduce: gloo's or nccl's on processes, a modelled one on the virtual cluster.

Both are rings (Patarasuk and Yuan 2009, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations") that go
on while the worker computes.

Cost of a sum of S bytes among K workers: all_reduce 2 (K-1)/K S.
"""

from torch import Tensor

from ....comm import Comm, Work
from ...base import Traffic, World
from .base import Collective


class Fabric(Collective):
    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        return comm.all_reduce(tensor)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        return {"all_reduce": 2 * (world.replicas - 1) / world.replicas * nbytes}
