"""The modelled network of the virtual cluster: alpha-beta links that messages occupy.

A message of n bytes waits until every link on its way is free, holds each for n / its bandwidth, and arrives a latency
after the slowest has let it through. So a parameter server's incast, and hosts that share a switch, queue by
themselves. Links are full duplex. A sender whose message waits for a busy receiver holds its own link meanwhile.

Topology: worker r lives on host r // workers_per_host, host h in rack h // hosts_per_rack. Workers of one host talk over
`inside`; hosts have one network card each; racks share an uplink of hosts_per_rack cards' bandwidth / oversubscription.
"""

from dataclasses import dataclass, field
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
    """One direction of a link. `free`: when the last message has let go of it."""

    bandwidth: float
    free: float = 0.0


@dataclass
class Fabric:
    """The links of `size` workers, and when each is free."""

    network: Network
    size: int
    _out: list[_Lane] = field(init=False)
    _in: list[_Lane] = field(init=False)

    def __post_init__(self) -> None:
        network, size = self.network, self.size
        each = network.workers_per_host
        hosts = ceil(size / each)
        inside = network.inside.bandwidth if each > 1 else network.between.bandwidth
        self._out = [_Lane(inside) for _ in range(size)]
        self._in = [_Lane(inside) for _ in range(size)]
        self._host_out = [_Lane(network.between.bandwidth) for _ in range(hosts)]
        self._host_in = [_Lane(network.between.bandwidth) for _ in range(hosts)]
        per_rack = network.hosts_per_rack
        self._racks = ceil(hosts / per_rack) if per_rack else 1
        uplink = network.between.bandwidth * (per_rack or 1) / network.oversubscription
        self._rack_out = [_Lane(uplink) for _ in range(self._racks)]
        self._rack_in = [_Lane(uplink) for _ in range(self._racks)]

    def host(self, rank: int) -> int:
        return rank // self.network.workers_per_host

    def rack(self, rank: int) -> int:
        return self.host(rank) // self.network.hosts_per_rack if self.network.hosts_per_rack else 0

    def send(self, src: int, dst: int, nbytes: int, at: float) -> tuple[float, float]:
        """A message that is ready at `at`: when the sender's link is free again, and when it has arrived."""
        lanes, latency = self._way(src, dst)
        start = max(at, *(lane.free for lane in lanes))
        slowest = 0.0
        for lane in lanes:
            taken = nbytes / lane.bandwidth
            lane.free = start + taken
            slowest = max(slowest, taken)
        return start + slowest, start + slowest + latency

    def _way(self, src: int, dst: int) -> tuple[list[_Lane], float]:
        network = self.network
        if network.workers_per_host == 1 and self._racks == 1:
            return [self._out[src], self._in[dst]], network.between.latency
        a, b = self.host(src), self.host(dst)
        lanes = [self._out[src], self._in[dst]]
        if a == b and network.workers_per_host > 1:
            return lanes, network.inside.latency
        if network.workers_per_host > 1:
            lanes += [self._host_out[a], self._host_in[b]]
        if self.rack(src) != self.rack(dst):
            lanes += [self._rack_out[self.rack(src)], self._rack_in[self.rack(dst)]]
        return lanes, network.between.latency

    # -- collectives: closed forms, which hold all members' links

    def all_reduce(self, ranks: list[int], nbytes: int, at: float) -> float:
        """Ring: 2 (n-1) steps of nbytes / n."""
        return self._ring(ranks, 2 * (len(ranks) - 1), nbytes / len(ranks), at)

    def all_gather(self, ranks: list[int], nbytes: int, at: float) -> float:
        """Ring: n-1 steps of one worker's nbytes."""
        return self._ring(ranks, len(ranks) - 1, nbytes, at)

    def scatter(self, ranks: list[int], nbytes: int, at: float) -> float:
        """reduce_scatter and all_to_all: n-1 steps of nbytes / n."""
        return self._ring(ranks, len(ranks) - 1, nbytes / len(ranks), at)

    def broadcast(self, ranks: list[int], nbytes: int, at: float) -> float:
        """Binomial tree: ceil(log2 n) steps of nbytes."""
        return self._ring(ranks, ceil(log2(len(ranks))), nbytes, at)

    def barrier(self, ranks: list[int], at: float) -> float:
        """Dissemination: ceil(log2 n) empty messages; they hold no link."""
        return at + ceil(log2(len(ranks))) * self._hop(ranks)[0]

    def _ring(self, ranks: list[int], steps: int, nbytes: float, at: float) -> float:
        if len(ranks) == 1:
            return at
        latency, bandwidth = self._hop(ranks)
        held = [lane for rank in ranks for lane in (self._out[rank], self._in[rank])]
        if self.network.workers_per_host > 1:
            hosts = sorted({self.host(rank) for rank in ranks})
            if len(hosts) > 1:
                held += [lane for host in hosts for lane in (self._host_out[host], self._host_in[host])]
        start = max(at, *(lane.free for lane in held))
        busy = steps * nbytes / bandwidth
        for lane in held:
            lane.free = start + busy
        return start + steps * latency + busy

    def _hop(self, ranks: list[int]) -> tuple[float, float]:
        """The slowest hop of a ring in the order of ranks; racks' uplinks carry one flow each way there."""
        if self.network.workers_per_host > 1 and self.host(ranks[0]) == self.host(ranks[-1]):
            return self.network.inside.latency, self.network.inside.bandwidth
        latency, bandwidth = self.network.between.latency, self.network.between.bandwidth
        if self._racks > 1 and self.rack(ranks[0]) != self.rack(ranks[-1]):
            bandwidth = min(bandwidth, self._rack_out[0].bandwidth)
        return latency, bandwidth
