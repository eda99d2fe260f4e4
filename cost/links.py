"""The time that devices take to send to each other: alpha-beta, on two levels, links inside a host and between hosts.

A ring's all-reduce of S bytes among n takes alpha + 2 (n-1)/n S beta, an all-gather or a reduce-scatter half of the
bandwidth's term (Patarasuk and Yuan 2009). Here alpha is that of the whole collective: libraries choose trees for
small messages, so that it hardly grows with n (it is multiplied by log2 of the hosts where there is more than one).
For gathers and scatters NCCL has rings alone, so that each turn adds its own latency where there are several hosts.

A group that spans hosts goes at the pace of its slowest link. Where several groups of the same kind share a host's
card, as all tensor ranks do when their gradients are summed, each has its share of it.
"""

from dataclasses import dataclass
from math import ceil, log2

# Rings across hosts, by NCCL's src/graph/tuning.cc, which takes the quicker of its protocols simple and LL128: seconds
# of a turn to the next host and to the next device of a host, and the share of the bandwidth
RINGS = ((1.4e-5, 3.4e-6, 1.0), (4.0e-6, 1.9e-6, 0.92))


@dataclass(frozen=True)
class Link:
    """`latency`: seconds of a collective or message; `bandwidth`: bytes a second and direction."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Links:
    """`inside` a host: of each device. `between` hosts: of a host's card or cards together."""

    inside: Link
    between: Link
    per_host: int

    def slowest(self, size: int, stride: int) -> Link:
        """The link of a group of `size` devices whose ranks are `stride` apart, all such groups at work at once."""
        hosts = self._hosts(size, stride)
        if hosts == 1:
            return self.inside
        sharing = min(self.per_host, stride)  # groups that go through one host's card at once
        bandwidth = min(self.inside.bandwidth, self.between.bandwidth / sharing)
        return Link(self.between.latency * max(1.0, log2(hosts)), bandwidth)

    def _hosts(self, size: int, stride: int) -> int:
        """Hosts of a group of `size` devices whose ranks are `stride` apart."""
        return ceil(size / min(size, max(1, self.per_host // stride)))

    def all_reduce(self, nbytes: float, size: int, stride: int) -> float:
        link = self.slowest(size, stride)
        return 0.0 if size == 1 else link.latency + 2 * (size - 1) / size * nbytes / link.bandwidth

    def all_gather(self, nbytes: float, size: int, stride: int) -> float:
        """`nbytes`: of the whole, once gathered. A reduce-scatter takes as long."""
        if size == 1:
            return 0.0
        link, hosts = self.slowest(size, stride), self._hosts(size, stride)
        moved = (size - 1) / size * nbytes / link.bandwidth
        if hosts == 1:
            return link.latency + moved
        turns = ((hosts - 1) * between + (size - hosts) * inside + moved / share for between, inside, share in RINGS)
        return self.between.latency + min(turns)

    def all_to_all(self, nbytes: float, size: int) -> float:
        """Seconds in which each of `size` devices, one after the other in rank, sends `nbytes` of its own in equal
        parts to all of them, itself among them; all such groups at once.

        The bytes for other hosts go through a host's card, which its devices share.
        """
        if size == 1:
            return 0.0
        here = min(size, self.per_host)
        inside = (here - 1) / size * nbytes / self.inside.bandwidth
        if here == size:
            return self.inside.latency + inside
        outside = (size - here) / size * nbytes * self.per_host / self.between.bandwidth
        return self.between.latency * max(1.0, log2(ceil(size / here))) + max(inside, outside)

    def send(self, nbytes: float, stride: int) -> float:
        """Returns the seconds to send to the rank that is `stride` further, while all ranks of a host do so at once."""
        if stride < self.per_host:
            return self.inside.latency + nbytes / self.inside.bandwidth
        return self.between.latency + nbytes / min(self.inside.bandwidth, self.between.bandwidth / self.per_host)
