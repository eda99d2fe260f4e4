"""Who takes part in a federated round, and who leaves it: functions of the seed and the round, so that every client and
the server know it without a message.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from ..base import World

_LEAVES, _DRAWN = 1, 2  # tell these draws from those of `sampled`; not 0, which numpy takes for nothing


@lru_cache(maxsize=256)
def sampled(seed: int, number: int, clients: int, count: int) -> frozenset[int]:
    """The `count` of `clients` that take part in round `number`, all alike."""
    return frozenset(np.random.default_rng((seed, number)).choice(clients, count, replace=False).tolist())


@lru_cache(maxsize=256)
def drawn(seed: int, number: int, shares: tuple[float, ...], count: int) -> Mapping[int, int]:
    """How often each client is drawn in round `number`, `count` times by its share with replacement; those that are."""
    draws = np.random.default_rng((seed, number, _DRAWN)).choice(len(shares), count, p=shares)
    return dict(sorted(Counter(draws.tolist()).items()))


@lru_cache(maxsize=1024)
def leaves_after(seed: int, number: int, client: int, probability: float, length: int) -> int | None:
    """The step of the round's `length`, from 1, after which this client leaves it; None: it stays."""
    generator = np.random.default_rng((seed, number, client, _LEAVES))
    return int(generator.integers(1, length + 1)) if generator.random() < probability else None


@dataclass(frozen=True)
class Participation:
    """`fraction`: C of the clients take part in a round. `sampling`: drawn all alike, or by their samples, with
    replacement. `dropout`: how likely one leaves a round. `seed`: of all that.

    `shares`, where it is asked for: n_k / n of each client k.
    """

    fraction: float
    sampling: Literal["uniform", "weighted"]
    dropout: float
    seed: int

    def per_round(self, clients: int) -> int:
        """m = max(C K, 1)"""
        return max(round(self.fraction * clients), 1)

    def sampled(self, number: int, clients: int, shares: tuple[float, ...]) -> frozenset[int]:
        """Who of so many clients takes part in round `number`."""
        if self.sampling == "weighted":
            return frozenset(drawn(self.seed, number, shares, self.per_round(clients)))
        return sampled(self.seed, number, clients, self.per_round(clients))

    def weight(self, client: int, samples: int, number: int, shares: tuple[float, ...]) -> int:
        """n_k; where clients are drawn by their samples, how often this one was."""
        if self.sampling == "uniform" or samples == 0:
            return samples
        return drawn(self.seed, number, shares, self.per_round(len(shares)))[client]

    def leaves_after(self, client: int, number: int, length: int) -> int | None:
        """The step of round `number`, 1 to `length`, after which `client` leaves it; None: it stays."""
        return None if self.dropout == 0 else leaves_after(self.seed, number, client, self.dropout, length)

    def often(self, world: World, length: int) -> tuple[float, float]:
        """(fetches, deliveries) of a step that a client trains, on average; `length` steps are a round."""
        if self.dropout == 0:
            return world.often(length, first=1), world.often(length)
        if world.steps is None:
            steps = (1 - self.dropout) * length + self.dropout * (length + 1) / 2
            return 1 / steps, (1 - self.dropout) / steps
        joined = delivered = trained = 0
        for number in range(-(-world.steps // length)):
            steps = min(length, world.steps - number * length)
            for client in sampled(self.seed, number, world.replicas, self.per_round(world.replicas)):
                after = self.leaves_after(client, number, length)
                joined += 1
                delivered += after is None and steps == length
                trained += steps if after is None else min(after, steps)
        return joined / trained, delivered / trained

    @property
    def varies(self) -> str:
        """Why `often` is not what comes, or nothing."""
        if self.dropout > 0 and self.sampling == "weighted":
            return "sync.sampling: who is drawn, and so who leaves, depends on the samples of each client"
        return ""
