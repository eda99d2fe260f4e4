"""Two levels: inside of each host, then between hosts, then back (Jia et al. 2018, "Highly Scalable Deep Learning
Training System with Mixed-Precision: Training ImageNet in Four Minutes", arXiv 1807.11205, section 3.3).

The first worker of each host is its leader.

    1. Each host's workers reduce to their leader, over a binomial tree (tree.py).
    2. Leaders sum up over a ring (ring.py).
    3. Each leader broadcasts to its host's workers, over the same tree.

So K workers on H hosts go through the slow links in the 2 (H-1) steps of H workers. Hosts may have different numbers of
workers. Leaders' sums are copied: all have the same bits.

Deviations from the paper: a binomial tree inside of hosts. Nothing moves before the sum is waited for.

Cost of a sum of S bytes among K workers on H hosts, at most W on each: send 2 ((K-H) + (H-1)) S / K on average over the
workers, in (2 (K-H) + 2 H (H-1)) / K messages. Time: 2 ceil(log2 W) (alpha + S beta) inside of a host and 2 (H-1)
(alpha' + S/H beta') between hosts.

Use it where hosts of several workers are joined by links slower than those inside: one worker of each host alone
talks to others.
"""

from collections.abc import Sequence
from itertools import zip_longest

from torch import Tensor

from ...comm import Comm, Work
from ...conf.errors import ConfigError
from ...strategies.core.cost import Traffic, World
from . import ring, tree
from .base import Collective, Members, OnceWaitedFor, Phase, phase


class Hierarchical(Collective):
    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        hosts = by_host(comm.hosts)
        mine = next(ranks for ranks in hosts if comm.rank in ranks)

        def two_levels(x: Tensor, _: Members) -> None:
            inside = Members(comm, mine)
            tree.reduce(x, inside)
            if inside.rank == 0:
                ring.go_round(x, Members(comm, [ranks[0] for ranks in hosts]))
            tree.broadcast(x, inside)

        return OnceWaitedFor(two_levels, tensor, comm)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        k, h = world.replicas, len(_checked(world))
        return {"send": 2 * (k - h + h - 1) / k * nbytes}

    def messages(self, nbytes: float, world: World) -> float:
        k, h = world.replicas, len(_checked(world))
        return (2 * (k - h) + 2 * h * (h - 1)) / k

    def phases(self, nbytes: float, world: World) -> list[Phase]:
        hosts = _checked(world)
        leaders = [ranks[0] for ranks in hosts]
        k = len(hosts)
        together = zip_longest(*(_inside(ranks) for ranks in hosts), fillvalue=[])
        up = [phase("reduce", nbytes, [pair for pairs in each for pair in pairs], world) for each in together]
        round_ = [(leaders[i], leaders[(i + 1) % k]) for i in range(k)]
        return [
            *up,
            *(phase(name, nbytes / k, round_, world, steps=k - 1) for name in ("share-reduce", "share-only") if k > 1),
            *(each.backwards("broadcast") for each in up[::-1]),
        ]


def by_host(hosts: Sequence[int]) -> list[list[int]]:
    """The ranks of each host, in order."""
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return list(found.values())


def has_levels(world: World) -> bool:
    """Returns True if there are several hosts, and several workers on one of them."""
    return world.hosts is not None and 1 < len(by_host(world.hosts)) < world.replicas


def _checked(world: World) -> list[list[int]]:
    """The ranks of each host. Raises `ConfigError` where there is only one level."""
    if world.replicas == 1:
        return [[0]]
    if world.hosts is None:
        where = "it is not known on which hosts the workers will be"
    elif has_levels(world):
        return by_host(world.hosts)
    elif len(by_host(world.hosts)) == 1:
        where = f"all {world.replicas} that make this sum are on one host"
    else:
        where = f"each of the {world.replicas} that make this sum is alone on its host"
    raise ConfigError(
        f"sums inside of hosts and then between them, and {where}; must be several workers on several "
        "hosts. Choose hardware=virtual with hardware.workers_per_host above 1 and more hardware.workers than that, "
        "torchrun on several hosts, or collective=ring.",
        about=("collective",),
    )


def _inside(ranks: list[int]) -> list[list[tuple[int, int]]]:
    return [[(ranks[child], ranks[parent]) for child, parent in pairs] for pairs in tree.steps(len(ranks))]
