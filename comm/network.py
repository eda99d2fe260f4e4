"""The modelled network of the virtual cluster: latency and bandwidth, and links that messages share.

A message of n bytes is a flow over all links on its way, and arrives a latency after its last byte has left. Messages
from one worker to another go one after the other; all others share links max-min fairly (see links.py), as connections
over a switch with fair queues do. Links are full duplex. So a parameter server's incast, and hosts that share a switch,
slow each other down by themselves, and what waits for a busy receiver keeps nobody from sending to another one.

A collective is one flow over all links between its members, as each of them sends and receives all the time: steps
times the bytes of one, over the slowest of these links if nobody else uses them. A group's collectives go one after the
other, and the latencies of one overlap with the next.

Topology: worker r lives on host r // workers_per_host, host h in rack h // hosts_per_rack. Workers of one host talk
over `inside`; hosts have one network card each; the hosts of a rack share an uplink. A rack may be any group of hosts
with a link of its own to the others: a rack of a fat tree, a group of a dragonfly, a region. Without an `uplink` of its
own, it has the bandwidth of hosts_per_rack cards / oversubscription. Each link has a bandwidth down, which is that of
receiving, and one up. The core between cards or uplinks is never full, as in a dragonfly with adaptive routing, where a
group's global links carry messages to whichever other group.

The latency of a message is that of the slowest of the cards and uplinks on its path, and `inside`'s within a host.

Links may fail (`links_of`, `cut`): a flow over a link that is down waits until it is up again. A barrier, and what
happens aside from training, holds no link and passes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2
from typing import Literal

from .errors import NetworkError
from .links import ModelledLinks, SharedLinks

Arrives = Callable[[float, float], None]  # (when the last byte has left, when it has arrived)
Over = Callable[[float], None]  # when the last member of a collective is through
Place = Literal["worker", "host", "rack"]


@dataclass(frozen=True)
class NetworkLink:
    """alpha in seconds, beta as its inverse: bandwidth in bytes a second, that of receiving. `upload`: that of sending;
    None: the same.
    """

    latency: float
    bandwidth: float
    upload: float | None = None

    @property
    def up(self) -> float:
        return self.bandwidth if self.upload is None else self.upload

    def uplink_of(self, hosts: int, oversubscription: float) -> "NetworkLink":
        """Returns the uplink of so many hosts that have this link each."""
        return NetworkLink(self.latency, self.bandwidth * hosts / oversubscription, self.up * hosts / oversubscription)


@dataclass(frozen=True)
class Network:
    """`between` hosts and `inside` one.

    `uplink`: of a rack to the others; None: as many cards' as the rack has hosts, over `oversubscription`. `racks`: no
    more than so many; further hosts, which are those of servers, are in the last one. `server`: the card of ranks from
    `workers` on, each with a host of its own; None: as all others.
    """

    between: NetworkLink
    inside: NetworkLink
    workers_per_host: int = 1
    hosts_per_rack: int | None = None
    oversubscription: float = 1.0
    uplink: NetworkLink | None = None
    racks: int | None = None
    server: NetworkLink | None = None
    workers: int | None = None  # None: all ranks

    def __post_init__(self) -> None:
        for link in (self.between, self.inside, self.uplink, self.server):
            if link is not None and (link.latency < 0 or link.bandwidth <= 0 or link.up <= 0):
                up = "" if link.upload is None else f" with upload {link.upload}"
                raise NetworkError(
                    f"hardware.network: latency {link.latency} and bandwidth {link.bandwidth}{up} make no link"
                )

    def rack(self, host: int) -> int:
        if self.hosts_per_rack is None:
            return 0
        rack = host // self.hosts_per_rack
        return rack if self.racks is None else min(rack, self.racks - 1)

    def card(self, rank: int) -> NetworkLink:
        """Returns the link of this rank's host."""
        is_worker = self.workers is None or rank < self.workers
        return self.between if self.server is None or is_worker else self.server

    @property
    def rack_link(self) -> NetworkLink:
        """Returns the uplink of a rack."""
        if self.uplink is not None:
            return self.uplink
        return self.between.uplink_of(self.hosts_per_rack or 1, self.oversubscription)


class ModelledNetwork:
    """The links of `size` workers. Times are seconds, sizes bytes.

    Who sends something says what is to be called when it is over: before the call returns where it takes no time, else
    when `links` get there.
    """

    def __init__(self, network: Network, size: int, links: ModelledLinks | None = None) -> None:
        """`links`: without lanes yet; None for links in Python."""
        self.network, self.links = network, SharedLinks() if links is None else links
        each = network.workers_per_host
        hosts = ceil(size / each)
        cards = [network.card(host * each) for host in range(hosts)]
        own = [network.inside] * size if each > 1 else cards
        self._out, self._in = self._lanes(own)
        self._host_out, self._host_in = self._lanes(cards)
        racks = network.rack(hosts - 1) + 1
        self._uplink = network.rack_link
        self._rack_out, self._rack_in = self._lanes([self._uplink] * racks)
        self._flat = each == 1 and racks == 1
        self._latencies = [card.latency for card in cards]
        self._cuts: list[tuple[frozenset[int], int]] = []  # (those who may be cut off, what crosses the cut holds)

    def _lanes(self, links: Sequence[NetworkLink]) -> tuple[list[int], list[int]]:
        """Returns the lanes of these links out and in."""
        return [self.links.add(link.up) for link in links], [self.links.add(link.bandwidth) for link in links]

    def host(self, rank: int) -> int:
        return rank // self.network.workers_per_host

    def rack(self, rank: int) -> int:
        return self.network.rack(self.host(rank))

    def alone(self, src: int, dst: int, nbytes: float) -> float:
        """Returns the seconds that a message takes on a network without other traffic."""
        lanes, latency = self._way(src, dst)
        return latency + nbytes / min(map(self.links.bandwidth, lanes))

    # -- failures of links

    def count(self, place: Place) -> int:
        return len({"worker": self._out, "host": self._host_out, "rack": self._rack_out}[place])

    def at(self, place: Place, rank: int) -> int:
        """Returns the number of the worker, host or rack that a worker is in."""
        return {"worker": int, "host": self.host, "rack": self.rack}[place](rank)

    def members(self, place: Place, numbers: Iterable[int]) -> frozenset[int]:
        """Returns the workers, by rank, that are in these places."""
        wanted = set(numbers)
        return frozenset(rank for rank in range(len(self._out)) if self.at(place, rank) in wanted)

    def links_of(self, place: Place, numbers: Iterable[int]) -> list[int]:
        """Returns both directions of the links that these workers, hosts or racks have to the others."""
        if place == "host" and self.network.workers_per_host == 1:
            place = "worker"
        out, into = {
            "worker": (self._out, self._in),
            "host": (self._host_out, self._host_in),
            "rack": (self._rack_out, self._rack_in),
        }[place]
        return [lanes[number] for number in numbers for lanes in (out, into)]

    def cut(self, ranks: frozenset[int]) -> int:
        """Returns a lane that everything holds from now on that goes between `ranks` and the others."""
        self._cuts.append((ranks, self.links.add(inf)))
        return self._cuts[-1][1]

    def _crossed(self, ranks: Iterable[int]) -> list[int]:
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

    def _way(self, src: int, dst: int) -> tuple[list[int], float]:
        lanes = [self._out[src], self._in[dst]]
        if self._cuts:
            lanes += self._crossed((src, dst))
        if self._flat:
            return lanes, max(self._latencies[src], self._latencies[dst])
        latency = self._latency(src, dst)
        a, b = self.host(src), self.host(dst)
        if self.network.workers_per_host > 1:
            if a == b:
                return lanes, latency
            lanes += [self._host_out[a], self._host_in[b]]
        if (source := self.network.rack(a)) != (target := self.network.rack(b)):
            lanes += [self._rack_out[source], self._rack_in[target]]
        return lanes, latency

    def _latency(self, first: int, last: int) -> float:
        """Returns the latency between two workers, which is also that of the longest hop of a ring from `first` to
        `last` in the order of ranks.
        """
        network = self.network
        if network.workers_per_host > 1 and self.host(first) == self.host(last):
            return network.inside.latency
        latency = max(network.card(first).latency, network.card(last).latency)
        if self._flat or self.rack(first) == self.rack(last):
            return latency
        return max(latency, self._uplink.latency)

    # -- collectives

    def all_reduce(self, group: str, ranks: Sequence[int], nbytes: int, at: float, over: Over) -> None:
        """Ring: 2 (n-1) steps of nbytes / n."""
        self._steps(group, ranks, 2 * (len(ranks) - 1), nbytes / len(ranks), at, over)

    def sum_in_memory(self, group: str, ranks: Sequence[int], nbytes: int, at: float, over: Over) -> None:
        """2 steps in which each worker of one host reads what it needs of the others: (n-1) / n of nbytes."""
        self._steps(group, ranks, 2, (len(ranks) - 1) / len(ranks) * nbytes, at, over)

    def all_gather(self, group: str, ranks: Sequence[int], nbytes: int, at: float, over: Over) -> None:
        """Ring: n-1 steps of one worker's nbytes."""
        self._steps(group, ranks, len(ranks) - 1, nbytes, at, over)

    def scatter(self, group: str, ranks: Sequence[int], nbytes: int, at: float, over: Over) -> None:
        """reduce_scatter and all_to_all: n-1 steps of nbytes / n."""
        self._steps(group, ranks, len(ranks) - 1, nbytes / len(ranks), at, over)

    def broadcast(self, group: str, ranks: Sequence[int], nbytes: int, at: float, over: Over) -> None:
        """Binomial tree: ceil(log2 n) steps of nbytes."""
        self._steps(group, ranks, ceil(log2(len(ranks))), nbytes, at, over)

    def barrier(self, group: str, ranks: Sequence[int], nbytes: int, at: float, over: Over) -> None:
        """Dissemination: ceil(log2 n) empty messages; they hold no link and wait for nothing."""
        over(at + ceil(log2(len(ranks))) * self._latency(ranks[0], ranks[-1]))

    def _steps(self, group: str, ranks: Sequence[int], steps: int, nbytes: float, at: float, over: Over) -> None:
        """`steps` in each of which each member sends `nbytes` to the next one."""
        latency = steps * self._latency(ranks[0], ranks[-1])
        self.links.post(group, self._between(ranks), steps * nbytes, at, lambda left: over(left + latency))

    def _between(self, ranks: Sequence[int]) -> list[int]:
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
