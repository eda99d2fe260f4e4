"""Communication graphs: to whom worker i of n sends in round r, and of whom it receives.

    ring                  i - 1 and i + 1, modulo n
    exponential           sends to i + 2^k for all k < tau, tau = ceil(log2 n)
    one_peer_exponential  sends to i + 2^k for k = r mod tau alone (Assran et al. 2019, "Stochastic Gradient Push for
                          Distributed Deep Learning"; Ying et al. 2021, "Exponential Graph is Provably
                          Efficient for Decentralized Deep Training", for both exponential graphs)
    matching              pairs drawn at random, each to each other; of an odd number one sits out
    one_peer_and_random   sends to that one and to another, drawn at random; any number send to it

The exponential graphs are directed: i receives of i - 2^k. What is drawn follows from (seed, r), so that no message
tells it.

In all but one_peer_and_random a worker receives of as many as it sends to. There a_ij = 1 / (1 + |of|), for j in `of`
and j = i, is doubly stochastic: all degrees are alike, but for the one that sits out, which keeps a_ii = 1. Of two
workers each is both of the ring's neighbours of the other, and is listed once: a_ij = 1/2 (Metropolis weights, Xiao and
Boyd 2004).
In any graph p_ji = 1 / (1 + |to|), for j in `to` and j = i, is column stochastic, which is what push-sum asks for.
"""

from typing import Literal, NamedTuple

import numpy as np

from ..cost.transfer import Transfer, passes

Topology = Literal["ring", "exponential", "one_peer_exponential", "matching", "one_peer_and_random"]


class Neighbours(NamedTuple):
    """Workers, none of them twice and never the worker itself."""

    to: list[int]
    of: list[int]


def neighbours(topology: Topology, worker: int, size: int, round: int, seed: int) -> Neighbours:
    """Returns the neighbours of `worker` among `size` workers; one worker has none."""
    if size == 1:
        return Neighbours([], [])
    match topology:
        case "ring":
            return _circulant(worker, size, sorted({1, size - 1}))
        case "exponential":
            return _circulant(worker, size, [2**k for k in range(_tau(size))])
        case "one_peer_exponential":
            return _circulant(worker, size, [2 ** (round % _tau(size))])
        case "matching":
            return _matching(worker, size, np.random.default_rng((seed, round)))
        case "one_peer_and_random":
            return _one_peer_and_random(worker, size, 2 ** (round % _tau(size)), np.random.default_rng((seed, round)))


def out_degree(topology: Topology, size: int) -> float:
    """Returns the mean over workers of the number of messages that each sends in a round."""
    if size == 1:
        return 0.0
    match topology:
        case "ring" | "one_peer_and_random":
            return min(2, size - 1)
        case "exponential":
            return _tau(size)
        case "one_peer_exponential":
            return 1.0
        case "matching":
            return (size - size % 2) / size


def to_neighbours(topology: Topology, size: int, nbytes: int, period: int, entries: int = 0) -> Transfer:
    """Returns what each of `size` workers sends every `period` steps: a message to each neighbour.

    `entries`: of the weights, which a worker goes through once, and twice more for each message.
    """
    sent = out_degree(topology, size) * nbytes
    count = max(1, round(out_degree(topology, size)))
    kernels = passes("add_", entries, 1 + 2 * count) if entries and size > 1 else ()
    return Transfer("send", size, sent, every=period, messages=((sent / count, count),), kernels=kernels)


def _tau(size: int) -> int:
    """ceil(log2 size)"""
    return (size - 1).bit_length()


def _circulant(worker: int, size: int, hops: list[int]) -> Neighbours:
    return Neighbours([(worker + hop) % size for hop in hops], [(worker - hop) % size for hop in hops])


def _matching(worker: int, size: int, rng: np.random.Generator) -> Neighbours:
    order = rng.permutation(size)  # 0 with 1, 2 with 3, ...
    place = int(np.flatnonzero(order == worker)[0])
    other = place ^ 1
    pair = [int(order[other])] if other < size else []
    return Neighbours(pair, pair)


def _one_peer_and_random(worker: int, size: int, hop: int, rng: np.random.Generator) -> Neighbours:
    fixed = _circulant(worker, size, [hop])
    if size == 2:
        return fixed
    hops = rng.integers(1, size - 1, size=size)
    hops += hops >= hop  # 1 ... size - 1 without `hop`
    to = (np.arange(size) + hops) % size
    return Neighbours([*fixed.to, int(to[worker])], [*fixed.of, *np.flatnonzero(to == worker).tolist()])
