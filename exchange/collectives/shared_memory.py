"""A sum in memory that all workers of one host share: each sums one share, and the others read it (Jain et al. 2018,
"Framework for scalable intra-node collective operations using shared memory", SC; see comm/shared_sum.py).

Each worker lets the others read its parts of their shares, sums its own share over all workers in the order of ranks,
and reads the sums of the others. All copy the same sums: they have the same bits.

On CPUs that is what collective=fabric is where all workers are on one host. Here it is asked for, and refused
elsewhere.

Cost of a sum of S bytes among K workers: shared_memory 2 (K-1)/K S, which others read of a worker in two steps of
(K-1)/K S. Time: 2 (alpha + (K-1)/K S beta), alpha and 1 / beta those of a link inside of the host.

Use it to ask for this by name where all workers are on one host's CPUs: two steps, whatever their number.

Equation: worker r sums its share, s_r = sum_j x_j[r], and all read s_0, ..., s_(K-1).
"""

from torch import Tensor

from ...comm import Comm, Work
from ...conf.errors import ConfigError
from ...strategies.core.cost import Traffic, World
from .base import Collective, Phase, phase


class SharedMemory(Collective):
    on_gpus = False
    operation = "all_reduce"

    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        return comm.sum_in_memory(tensor)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        _check(world)
        return {"shared_memory": 2 * (world.replicas - 1) / world.replicas * nbytes}

    def messages(self, nbytes: float, world: World) -> float:
        _check(world)
        return 1

    def phases(self, nbytes: float, world: World) -> list[Phase]:
        _check(world)
        read = (world.replicas - 1) / world.replicas * nbytes
        ring = [(i, (i + 1) % world.replicas) for i in range(world.replicas)]  # each worker reads as much as any
        return [phase(name, read, ring, world) for name in ("sum", "read") if world.replicas > 1]


def _check(world: World) -> None:
    """Checks that all workers of the sum are on one host. Raises `ConfigError`."""
    if world.replicas == 1 or (world.hosts is not None and len(set(world.hosts)) == 1):
        return
    where = (
        "it is not known on which hosts the workers will be"
        if world.hosts is None
        else f"the {world.replicas} workers that make this sum are on {len(set(world.hosts))} hosts"
    )
    raise ConfigError(
        f"shares memory, and {where}; must be one host. Choose hardware=local, hardware=virtual with "
        "hardware.workers_per_host of at least hardware.workers, or collective=hierarchical, ring or fabric.",
        about=("collective",),
    )
