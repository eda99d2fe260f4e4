"""The algorithm that takes the least time by its own statement, for each size of tensor anew.

Each candidate's phases are timed on the network that the hardware's configuration describes (base.py). Where no
network is described, as for processes on hosts of which nothing is known, it is the fabric's. The ring of messages is
no candidate: the fabric's takes as long, and goes on while the worker computes. Memory that workers share is one where
the fabric can sum in it and has another way, too: where all are on one modelled host. (On the CPUs of a real host it is
what the fabric does, and its GPUs have none.) Of those within a hundredth of the least time the first is taken, in the
order below, in which sums that go on during backward come first.

Cost: that of the algorithm that is chosen.

Use it where tensors of many sizes are summed, or hosts and their links differ, and nobody wants to choose for each.

Rule: of the candidates' times alpha-beta by alpha-beta, phase by phase, the least.

Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH", choose by
size in the same way.
"""

from dataclasses import dataclass

from torch import Tensor

from ...comm import Comm, Work
from ...comm.base import numbered
from ...comm.network import Network
from ...cost.transfer import Transfer
from ...strategies.core.cost import Traffic, World
from .base import Collective, Phase, hosts_of, seconds
from .fabric import Fabric
from .halving_doubling import HalvingDoubling
from .hierarchical import Hierarchical, has_levels
from .recursive_doubling import RecursiveDoubling
from .shared_memory import SharedMemory
from .star import Star
from .tree import Tree

CANDIDATES: dict[str, Collective] = {
    "fabric": Fabric(),
    "shared_memory": SharedMemory(),
    "halving_doubling": HalvingDoubling(),
    "recursive_doubling": RecursiveDoubling(),
    "tree": Tree(),
    "star": Star(),
    "hierarchical": Hierarchical(),
}


OVERLAPPING = ("fabric", "shared_memory")
ALIKE = 1.01  # times the least: that much is nothing beside what backward may hide
OVERLAPS = " (goes on during backward)"  # which the times that are compared leave out


@dataclass(frozen=True)
class CollectiveChoice:
    name: str
    seconds: dict[str, float]  # of each candidate; empty where there was nothing to compare


class Auto(Collective):
    def __init__(self, network: Network | None = None, in_memory: bool = False) -> None:
        """`network`: the engine passes what the hardware's configuration describes; None where it describes none.

        `in_memory`: workers of one host can sum in memory that they share.
        """
        self._network, self._in_memory = network, in_memory
        self._chosen: dict[tuple[float, World], CollectiveChoice] = {}  # the same question has the same answer

    def choose(self, nbytes: float, world: World) -> CollectiveChoice:
        world = World(world.replicas, hosts=None if world.hosts is None else numbered(world.hosts))  # as `Comm.hosts`
        if (nbytes, world) not in self._chosen:
            self._chosen[nbytes, world] = self._compared(nbytes, world)
        return self._chosen[nbytes, world]

    def _compared(self, nbytes: float, world: World) -> CollectiveChoice:
        if self._network is None or world.hosts is None or world.replicas == 1 or not nbytes:
            return CollectiveChoice("fabric", {})
        times = {
            name: seconds(each.phases(nbytes, world), self._network)
            for name, each in CANDIDATES.items()
            if self._is_possible(name, world)
        }
        most = ALIKE * min(times.values())
        return CollectiveChoice(next(name for name, time in times.items() if time <= most), times)

    def _is_possible(self, name: str, world: World) -> bool:
        match name:
            case "hierarchical":
                return has_levels(world)
            case "shared_memory":
                return self._in_memory and len({*hosts_of(world)}) == 1
            case _:
                return True

    def _chosen_for(self, nbytes: float, world: World) -> Collective:
        return CANDIDATES[self.choose(nbytes, world).name]

    def explain(self) -> list[str]:
        alike: dict[
            tuple[int, int, str], dict[float, CollectiveChoice]
        ] = {}  # by workers, hosts and choice: of each size
        for (nbytes, world), choice in self._chosen.items():
            if world.replicas > 1:
                hosts = len({*hosts_of(world)})
                alike.setdefault((world.replicas, hosts, choice.name), {})[nbytes] = choice
        return [_said(*key, choices) for key, choices in alike.items()]

    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        nbytes = tensor.numel() * tensor.element_size()
        return self._chosen_for(nbytes, World(comm.size, hosts=comm.hosts)).all_reduce(tensor, comm)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        return self._chosen_for(nbytes, world).traffic(nbytes, world)

    def messages(self, nbytes: float, world: World) -> float:
        return self._chosen_for(nbytes, world).messages(nbytes, world)

    def transfers(self, nbytes: float, world: World) -> list[Transfer]:
        return self._chosen_for(nbytes, world).transfers(nbytes, world)

    def phases(self, nbytes: float, world: World) -> list[Phase]:
        return self._chosen_for(nbytes, world).phases(nbytes, world)


def _said(workers: int, hosts: int, name: str, choices: dict[float, CollectiveChoice]) -> str:
    """Returns a sentence that names the choice for these sizes, with the times for the largest size."""
    least, most = min(choices), max(choices)
    sums = f"sums of {least:,.0f} to {most:,.0f} bytes" if least < most else f"a sum of {most:,.0f} bytes"
    on = " on one host" if hosts == 1 else f" on {hosts} hosts" if hosts < workers else ""
    what, times = f"{name} for {sums} among {workers} workers{on}", choices[most].seconds
    if not times:
        return f"{what}: the links between them are not described, and it is what the fabric has for it"
    took = sorted((time, other) for other, time in times.items() if other != name)
    others = ", ".join(f"{other} {_millis(time)}{OVERLAPS if other in OVERLAPPING else ''}" for time, other in took)
    of = "the largest takes " if least < most else ""
    since = OVERLAPS if name in OVERLAPPING and times[name] > min(times.values()) else ""
    return f"{what}: {of}{_millis(times[name])}{since} by the cost model; {others}"


def _millis(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
