"""A collective all-reduces a tensor, by messages or by the fabric's own all-reduce.

An algorithm states what it costs in three ways: the bytes and the messages that leave a worker, and its phases, from
which its time on a quiet network follows (Hockney 1994, "The communication challenge for MPP: Intel Paragon and Meiko
CS-2", Parallel Computing 20(3)): a step in which k messages of b bytes share a link takes

    alpha + k b beta,

where alpha is the link's latency and 1 / beta its bandwidth.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...comm import Comm, Work
from ...comm.network import Network, NetworkLink
from ...cost.transfer import Operation, Transfer
from ...strategies.core.cost import Traffic, World
from ...strategies.core.terms import ADDABLE, ADDED_UP, FABRIC, UNINFORMED, Compatible, Need, Term, absent

Pairs = Iterable[tuple[int, int]]  # (source, destination) of each message of a step


class Load(NamedTuple):
    """The most messages that leave and reach one place at once."""

    out: int
    into: int

    @property
    def most(self) -> int:
        return max(self)

    def over(self, link: NetworkLink) -> float:
        """Returns the seconds for a byte of each message over the busiest of such links."""
        return max(self.out / link.up, self.into / link.bandwidth)


# The load of the busiest place, given each worker's: [workers], from 0. A message within one place is none.
LoadOf = Callable[[np.ndarray], Load]


@dataclass(frozen=True)
class Phase:
    """`steps` one after the other, in each of which messages of `nbytes` travel at once. `hosts`: of each worker."""

    name: str
    steps: int
    nbytes: float
    load_of: LoadOf
    hosts: tuple[int, ...]

    @cached_property
    def of_workers(self) -> Load:
        return self.load_of(np.arange(len(self.hosts)))

    @cached_property
    def of_hosts(self) -> Load:
        return self.load_of(np.array(self.hosts))

    @property
    def sharing(self) -> int:
        """Returns the number of messages that one worker's link carries, in one direction."""
        return self.of_workers.most

    @property
    def crossing(self) -> int:
        """Returns the number that one host's link to the other hosts carries; 0 where none leaves its host."""
        return self.of_hosts.most

    def of_racks(self, network: Network) -> Load:
        if network.hosts_per_rack is None:
            return Load(0, 0)
        return self.load_of(np.array([network.rack(host) for host in self.hosts]))

    def backwards(self, name: str) -> "Phase":
        """Returns one step in which the messages travel the other way."""
        return Phase(name, 1, self.nbytes, lambda places: Load(*reversed(self.load_of(places))), self.hosts)


def load_of_pairs(pairs: Pairs) -> LoadOf:
    ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2).T  # [2, messages]: sources, destinations

    def load_of(places: np.ndarray) -> Load:
        source, destination = there = places[ends]
        return Load(*(int(np.bincount(each, minlength=1).max()) for each in there[:, source != destination]))

    return load_of


class Collective(Compatible, ABC):
    """An algorithm. It keeps nothing from one sum to the next. `on_gpus`: it sums tensors of GPUs, too.

    `operation`: the operation whose measured time a sum takes; "send" where it is made of messages.
    """

    on_gpus: bool = True
    operation: Operation = "send"
    of_fabric: bool = False  # it is the fabric's own sum

    @property
    def lacks(self) -> Mapping[Term, str]:
        return absent((FABRIC, self.of_fabric))

    @property
    def needs(self) -> tuple[Need, ...]:
        if self.of_fabric:
            return ()
        adds = "adds vectors up on their way"
        return Need(ADDABLE, adds), Need(ADDED_UP, adds), Need(UNINFORMED, adds)

    @abstractmethod
    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        """tensor <- its sum over the workers of `comm`, in place, alike on all bit for bit, once waited for.

        All workers begin their sums in the same order, and wait for them in the same order.
        """

    @abstractmethod
    def traffic(self, nbytes: float, world: World) -> Traffic:
        """Bytes that leave a worker, on average over the replicas, for the sum of a tensor of `nbytes`.

        Raises `ConfigError` where the algorithm has no use for such replicas.
        """

    @abstractmethod
    def messages(self, nbytes: float, world: World) -> float:
        """Messages, or calls of the fabric's, that leave a worker, on average over the replicas, where none is empty.

        Raises as `traffic`.
        """

    @abstractmethod
    def phases(self, nbytes: float, world: World) -> list[Phase]:
        """Returns the phases of one sum, in order. Raises as `traffic`."""

    def transfers(self, nbytes: float, world: World) -> list[Transfer]:
        """Returns what a worker sends for one sum. Raises as `traffic`."""
        calls = ()
        if self.operation == "send":
            calls = tuple((each.sharing * each.nbytes, each.steps) for each in self.phases(nbytes, world))
        return [
            Transfer(self.operation, world.replicas, sent, primitive=primitive, messages=calls)
            for primitive, sent in self.traffic(nbytes, world).items()
        ]

    def explain(self) -> list[str]:
        """Returns each decision that the algorithm made when asked for its traffic, with the reason.

        Each text follows the name of the choice: `collective=auto: ...`.
        """
        return []


def seconds(phases: Sequence[Phase], network: Network) -> float:
    """Returns the time of the phases, in seconds, on a network without other traffic.

    If all messages of each step cross links of one level, as if each worker has its own host of one rack, the time
    equals the virtual clock's. Otherwise it is an estimate: it adds up all steps, each at the pace of its slowest
    message, although quick ones overlap with the next step's.
    """
    return sum(phase.steps * _step(phase, network) for phase in phases)


def _step(phase: Phase, network: Network) -> float:
    """alpha + k b beta, of the link that is the busiest."""
    inside, between = network.inside, network.between
    if not phase.crossing:
        return inside.latency + phase.nbytes * phase.of_workers.over(inside)
    own = inside if network.workers_per_host > 1 else between
    latency, byte = between.latency, max(phase.of_workers.over(own), phase.of_hosts.over(between))
    racks = phase.of_racks(network)
    if racks.most:
        latency, byte = max(latency, network.rack_link.latency), max(byte, racks.over(network.rack_link))
    return latency + phase.nbytes * byte


def phase(name: str, nbytes: float, pairs: Pairs, world: World, steps: int = 1) -> Phase:
    """`steps` in each of which messages of `nbytes` go from the first to the second worker of each pair."""
    return Phase(name, steps, nbytes, load_of_pairs(pairs), hosts_of(world))


def hosts_of(world: World) -> tuple[int, ...]:
    """Each worker's; where they are not known, each is on its own."""
    return tuple(range(world.replicas)) if world.hosts is None else world.hosts


class Members:
    """Some workers of `comm`, numbered anew in the order of `ranks`; None for all of them. This worker is one."""

    def __init__(self, comm: Comm, ranks: Sequence[int] | None = None) -> None:
        self._comm, self._ranks = comm, range(comm.size) if ranks is None else ranks
        self.rank, self.size = self._ranks.index(comm.rank), len(self._ranks)

    def named(self, purpose: str) -> AbstractContextManager[None]:
        return self._comm.timeline.named(purpose)

    def isend(self, tensor: Tensor, dst: int) -> Work:
        """Sends `tensor` to member `dst`; sends nothing if the tensor is empty."""
        return self._comm.isend(tensor, self._ranks[dst]) if len(tensor) else _Nothing()

    def send(self, tensor: Tensor, dst: int) -> None:
        self.isend(tensor, dst).wait()

    def recv(self, tensor: Tensor, src: int) -> None:
        if len(tensor):
            self._comm.recv(tensor, self._ranks[src])


class OnceWaitedFor(Work):
    """A sum of messages, of which none moves before it is waited for.

    `reduce(x, members)`: x [n] <- the sum over the members, in place.
    """

    def __init__(self, reduce: Callable[[Tensor, Members], None], tensor: Tensor, comm: Comm) -> None:
        self._reduce, self._tensor, self._comm, self._done = reduce, tensor.detach(), comm, False

    def wait(self) -> None:
        if self._done:
            return
        self._done = True
        flat = self._tensor.contiguous().view(-1)  # a copy where the tensor has another order in memory
        if self._comm.size > 1:
            self._reduce(flat, Members(self._comm))
        if flat.data_ptr() != self._tensor.data_ptr():
            self._tensor.copy_(flat.view(self._tensor.shape))


class _Nothing(Work):
    def wait(self) -> None:
        pass


def added(*traffics: Traffic) -> dict[str, float]:
    """Returns the sum of the traffics, by primitive."""
    return {
        primitive: sum(traffic.get(primitive, 0) for traffic in traffics)
        for primitive in dict.fromkeys(primitive for traffic in traffics for primitive in traffic)
    }


def times(factor: float, traffic: Traffic) -> dict[str, float]:
    return {primitive: factor * nbytes for primitive, nbytes in traffic.items()}
