"""Who takes part in a federated round, and who leaves it: functions of the seed and the round, so that every client and
the server know it without a message.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

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
