"""The fabric's own all-reduce: on processes through the memory of one host (comm/shared_sum.py), over several hosts
gloo's, on GPUs nccl's; a modelled one on the virtual cluster. All go on while the worker computes.

Between hosts, and on the virtual cluster, it is a ring (Patarasuk and Yuan 2009, "Bandwidth Optimal All-reduce
Algorithms for Clusters of Workstations"). In memory each worker sums one share, which the others read.

Cost of a sum of S bytes among K workers: all_reduce 2 (K-1)/K S, in memory too: what others read of a worker. Time of
the ring: 2 (K-1) (alpha + S/K beta).

Use it unless there is a reason for another: it goes on while the worker computes, which none of those made of
messages does.

Rule: chunk c of K is summed by one worker over all, and each other worker gets that sum.
"""

from torch import Tensor

from ...comm import Comm, Work
from ...strategies.core.cost import Traffic, World
from .base import Collective, Phase
from .ring import Ring


class Fabric(Collective):
    of_fabric = True
    operation = "all_reduce"

    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        return comm.all_reduce(tensor)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        return {"all_reduce": 2 * (world.replicas - 1) / world.replicas * nbytes}

    def messages(self, nbytes: float, world: World) -> float:
        return 1

    def phases(self, nbytes: float, world: World) -> list[Phase]:
        return Ring().phases(nbytes, world)
