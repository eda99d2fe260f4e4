"""The modelled network of the virtual cluster: latency and bandwidth, and links that messages share.

A message of n bytes is a flow over all links on its way, and arrives a latency after its last byte has left. Messages
from one worker to another go one after the other; all others share links max-min fairly (see links.py), as connections
over a switch with fair queues do. Links are full duplex. So a parameter server's incast, and hosts that share a switch,
slow each other down by themselves, and what waits for a busy receiver keeps nobody from sending to another one.

A collective is one flow over all links between its members, as each of them sends and receives all the time: steps
times the bytes of one, over the slowest of these links if nobody else uses them. A group's collectives go one after the
other, and the latencies of one overlap with the next.

Topology: worker r lives on host r // workers_per_host, host h in rack h // hosts_per_rack. Workers of one host talk
over `inside`; hosts have one network card each; racks share an uplink of hosts_per_rack cards' bandwidth /
oversubscription.

Links may fail (`links_of`, `cut`): a flow over a link that is down waits until it is up again. A barrier, and what
happens aside from training, holds no link and passes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, inf, log2
from typing import Literal

from .errors import NetworkError
from .links import Lane, SharedLinks

Arrives = Callable[[float, float], None]  # (when the last byte has left, when it has arrived)
Over = Callable[[float], None]  # when the last member of a collective is through
Place = Literal["worker", "host", "rack"]


@dataclass(frozen=True)
class NetworkLink:
    """alpha in seconds, beta as its inverse: bandwidth in bytes a second."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Network:
    """`between` hosts and `inside` one."""

    between: NetworkLink
    inside: NetworkLink
    workers_per_host: int = 1
    hosts_per_rack: int | None = None
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        for link in (self.between, self.inside):
            if link.latency < 0 or link.bandwidth <= 0:
                raise NetworkError(
                    f"hardware.network: latency {link.latency} and bandwidth {link.bandwidth} make no link"
                )


class ModelledNetwork:
    """The links of `size` workers. Times are seconds, sizes bytes.

    Who sends something says what is to be called when it is over: before the call returns where it takes no time, else
    when `links` get there.
    """

    def __init__(self, network: Network, size: int) -> None:
        self.network, self.links = network, SharedLinks()
        each, card = network.workers_per_host, network.between.bandwidth
        hosts = ceil(size / each)
        own = network.inside.bandwidth if each > 1 else card
        self._out, self._in = _lanes(size, own), _lanes(size, own)
        self._host_out, self._host_in = _lanes(hosts, card), _lanes(hosts, card)
        per_rack = network.hosts_per_rack or hosts
        racks, uplink = ceil(hosts / per_rack), card * per_rack / network.oversubscription
        self._rack_out, self._rack_in = _lanes(racks, uplink), _lanes(racks, uplink)
        self._flat = each == 1 and racks == 1
        self._per_rack = per_rack
        self._cuts: list[tuple[frozenset[int], Lane]] = []  # (those who may be cut off, what crosses the cut holds)

    def host(self, rank: int) -> int:
        return rank // self.network.workers_per_host

    def rack(self, rank: int) -> int:
        return self.host(rank) // self._per_rack

    # -- failures of links

    def count(self, place: Place) -> int:
        return len({"worker": self._out, "host": self._host_out, "rack": self._rack_out}[place])

    def members(self, place: Place, numbers: Iterable[int]) -> frozenset[int]:
        """Returns the workers, by rank, that are in these places."""
        where: Callable[[int], int] = {"worker": int, "host": self.host, "rack": self.rack}[place]
        wanted = set(numbers)
        return frozenset(rank for rank in range(len(self._out)) if where(rank) in wanted)

    def links_of(self, place: Place, numbers: Iterable[int]) -> list[Lane]:
        """Returns both directions of the links that these workers, hosts or racks have to the others."""
        if place == "host" and self.network.workers_per_host == 1:
            place = "worker"
        out, into = {
            "worker": (self._out, self._in),
            "host": (self._host_out, self._host_in),
            "rack": (self._rack_out, self._rack_in),
        }[place]
        return [lanes[number] for number in numbers for lanes in (out, into)]

    def cut(self, ranks: frozenset[int]) -> Lane:
        """Returns a lane that everything holds from now on that goes between `ranks` and the others."""
        self._cuts.append((ranks, Lane(inf)))
        return self._cuts[-1][1]

    def _crossed(self, ranks: Iterable[int]) -> list[Lane]:
        """Returns the cuts that lie between some of `ranks`."""
        return [lane for side, lane in self._cuts if len({rank in side for rank in ranks}) > 1]

    # -- messages

    def send(self, src: int, dst: int, nbytes: int, at: float, arrives: Arrives) -> None:
        """A message that is sent at `at`."""
        lanes, latency = self._way(src, dst)
        self.links.post((src, dst), lanes, nbytes, at, lambda left: arrives(left, left + latency))

    def follow(self, src: int, dst: int, at: float, arrives: Arrives) -> None:
        """A message that takes no time and no link, but comes after those that are under way from `src` to `dst`."""
        self.links.post((src, dst), (), 0, at, lambda left: arrives(left, left))

    def _way(self, src: int, dst: int) -> tuple[list[Lane], float]:
        network = self.network
        lanes = [self._out[src], self._in[dst]]
        if self._cuts:
            lanes += self._crossed((src, dst))
        if self._flat:
            return lanes, network.between.latency
        a, b = self.host(src), self.host(dst)
        if network.workers_per_host > 1:
            if a == b:
                return lanes, network.inside.latency
            lanes += [self._host_out[a], self._host_in[b]]
        if (source := self.rack(src)) != (target := self.rack(dst)):
            lanes += [self._rack_out[source], self._rack_in[target]]
        return lanes, network.between.latency

    # -- collectives

    def all_reduce(self, group: str, ranks: list[int], nbytes: int, at: float, over: Over) -> None:
        """Ring: 2 (n-1) steps of nbytes / n."""
        self._steps(group, ranks, 2 * (len(ranks) - 1), nbytes / len(ranks), at, over)

    def sum_in_memory(self, group: str, ranks: list[int], nbytes: int, at: float, over: Over) -> None:
        """2 steps in which each worker of one host reads what it needs of the others: (n-1) / n of nbytes."""
        self._steps(group, ranks, 2, (len(ranks) - 1) / len(ranks) * nbytes, at, over)

    def all_gather(self, group: str, ranks: list[int], nbytes: int, at: float, over: Over) -> None:
        """Ring: n-1 steps of one worker's nbytes."""
        self._steps(group, ranks, len(ranks) - 1, nbytes, at, over)

    def scatter(self, group: str, ranks: list[int], nbytes: int, at: float, over: Over) -> None:
        """reduce_scatter and all_to_all: n-1 steps of nbytes / n."""
        self._steps(group, ranks, len(ranks) - 1, nbytes / len(ranks), at, over)

    def broadcast(self, group: str, ranks: list[int], nbytes: int, at: float, over: Over) -> None:
        """Binomial tree: ceil(log2 n) steps of nbytes."""
        self._steps(group, ranks, ceil(log2(len(ranks))), nbytes, at, over)

    def barrier(self, group: str, ranks: list[int], nbytes: int, at: float, over: Over) -> None:
        """Dissemination: ceil(log2 n) empty messages; they hold no link and wait for nothing."""
        over(at + ceil(log2(len(ranks))) * self._latency(ranks))

    def _steps(self, group: str, ranks: list[int], steps: int, nbytes: float, at: float, over: Over) -> None:
        """`steps` in each of which each member sends `nbytes` to the next one."""
        latency = steps * self._latency(ranks)
        self.links.post(group, self._between(ranks), steps * nbytes, at, lambda left: over(left + latency))

    def _latency(self, ranks: list[int]) -> float:
        """Returns the latency of the longest hop of a ring in the order of ranks."""
        network = self.network
        inside = network.workers_per_host > 1 and self.host(ranks[0]) == self.host(ranks[-1])
        return network.inside.latency if inside else network.between.latency

    def _between(self, ranks: list[int]) -> list[Lane]:
        """A ring in the order of ranks crosses each card and uplink once each way."""
        held = [lanes[rank] for rank in ranks for lanes in (self._out, self._in)]
        if self._cuts:
            held += self._crossed(ranks)
        if not self._flat:
            hosts = dict.fromkeys(self.host(rank) for rank in ranks)
            if len(hosts) > 1:
                held += [lanes[host] for host in hosts for lanes in (self._host_out, self._host_in)]
            racks = dict.fromkeys(self.rack(rank) for rank in ranks)
            if len(racks) > 1:
                held += [lanes[rack] for rack in racks for lanes in (self._rack_out, self._rack_in)]
        return held


def _lanes(count: int, bandwidth: float) -> list[Lane]:
    return [Lane(bandwidth) for _ in range(count)]
