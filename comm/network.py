"""The modelled network of the virtual cluster: alpha-beta links that messages occupy.

A message of n bytes waits until every link on its way is free, holds each for n / its bandwidth, and arrives a latency
after the slowest has let it through. So a parameter server's incast, and hosts that share a switch, queue by
themselves. Links are full duplex, and go to messages in the order in which these are sent: one that must wait for a
busy receiver holds its sender's link meanwhile.

Topology: worker r lives on host r // workers_per_host, host h in rack h // hosts_per_rack. Workers of one host talk
over `inside`; hosts have one network card each; racks share an uplink of hosts_per_rack cards' bandwidth /
oversubscription.
"""

from dataclasses import dataclass
from math import ceil, log2

from .errors import NetworkError


@dataclass(frozen=True)
class Link:
    """alpha in seconds, beta as its inverse: bandwidth in bytes a second."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Network:
    """`between` hosts and `inside` one."""

    between: Link
    inside: Link
    workers_per_host: int = 1
    hosts_per_rack: int | None = None
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        for link in (self.between, self.inside):
            if link.latency < 0 or link.bandwidth <= 0:
                raise NetworkError(
                    f"hardware.network: latency {link.latency} and bandwidth {link.bandwidth} make no link"
                )


@dataclass
class _Lane:
    """One direction of a link. `free`: when the last message lets go of it."""

    bandwidth: float
    free: float = 0.0


class Fabric:
    """The links of `size` workers, and when each is free. Times are seconds, sizes bytes."""

    def __init__(self, network: Network, size: int) -> None:
        self.network = network
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

    def host(self, rank: int) -> int:
        return rank // self.network.workers_per_host

    def rack(self, rank: int) -> int:
        return self.host(rank) // self._per_rack

    def send(self, src: int, dst: int, nbytes: int, at: float) -> tuple[float, float]:
        """A message that is sent at `at`: when it has left and its sender may go on, and when it has arrived."""
        lanes, latency = self._way(src, dst)
        start = max(at, *[lane.free for lane in lanes])
        slowest = 0.0
        for lane in lanes:
            taken = nbytes / lane.bandwidth
            lane.free = start + taken
            slowest = max(slowest, taken)
        return start + slowest, start + slowest + latency

    def _way(self, src: int, dst: int) -> tuple[list[_Lane], float]:
        network = self.network
        lanes = [self._out[src], self._in[dst]]
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

    # -- collectives: closed forms, which hold all links between members until their last byte

    def all_reduce(self, ranks: list[int], nbytes: int, at: float) -> float:
        """Ring: 2 (n-1) steps of nbytes / n."""
        return self._steps(ranks, 2 * (len(ranks) - 1), nbytes / len(ranks), at)

    def all_gather(self, ranks: list[int], nbytes: int, at: float) -> float:
        """Ring: n-1 steps of one worker's nbytes."""
        return self._steps(ranks, len(ranks) - 1, nbytes, at)

    def scatter(self, ranks: list[int], nbytes: int, at: float) -> float:
        """reduce_scatter and all_to_all: n-1 steps of nbytes / n."""
        return self._steps(ranks, len(ranks) - 1, nbytes / len(ranks), at)

    def broadcast(self, ranks: list[int], nbytes: int, at: float) -> float:
        """Binomial tree: ceil(log2 n) steps of nbytes."""
        return self._steps(ranks, ceil(log2(len(ranks))), nbytes, at)

    def barrier(self, ranks: list[int], at: float) -> float:
        """Dissemination: ceil(log2 n) empty messages; they hold no link."""
        return at + ceil(log2(len(ranks))) * self._hop(ranks).latency

    def _steps(self, ranks: list[int], steps: int, nbytes: float, at: float) -> float:
        """`steps` in which each member sends `nbytes` to the next one, from when all their links are free."""
        hop, held = self._hop(ranks), self._between(ranks)
        busy = steps * nbytes / hop.bandwidth
        start = max(at, *[lane.free for lane in held])
        for lane in held:
            lane.free = start + busy
        return start + steps * hop.latency + busy

    def _between(self, ranks: list[int]) -> list[_Lane]:
        held = [lanes[rank] for rank in ranks for lanes in (self._out, self._in)]
        if not self._flat:
            hosts = dict.fromkeys(self.host(rank) for rank in ranks)
            if len(hosts) > 1:
                held += [lanes[host] for host in hosts for lanes in (self._host_out, self._host_in)]
            racks = dict.fromkeys(self.rack(rank) for rank in ranks)
            if len(racks) > 1:
                held += [lanes[rack] for rack in racks for lanes in (self._rack_out, self._rack_in)]
        return held

    def _hop(self, ranks: list[int]) -> Link:
        """The slowest hop of a ring in the order of ranks, which crosses each card and uplink once each way."""
        network = self.network
        if network.workers_per_host > 1 and self.host(ranks[0]) == self.host(ranks[-1]):
            return network.inside
        bandwidth = min(network.between.bandwidth, self._out[0].bandwidth)
        if self.rack(ranks[0]) != self.rack(ranks[-1]):
            bandwidth = min(bandwidth, self._rack_out[0].bandwidth)
        return Link(network.between.latency, bandwidth)


def _lanes(count: int, bandwidth: float) -> list[_Lane]:
    return [_Lane(bandwidth) for _ in range(count)]
