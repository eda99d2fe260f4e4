"""Batches that are drawn by chance (Poisson sampling), as DP-SGD has them (Abadi et al. 2016, "Deep Learning with
Differential Privacy", CCS, section 3.1 and Algorithm 1; arXiv 1607.00133). Of n samples each is in the batch of a step
with probability

    q = L / n,     L = min(K B, n) for K replicas with batches of B,

independently of all other samples and steps. So a batch has L samples on average, with variance n q (1 - q), and now
and then none. An epoch is as many steps as a shuffled one, ceil(n / (K B)); in it a sample may come several times, or
not at all.

One batch is drawn for all replicas, and dealt to them in parts that differ by one sample at most: together they take
what one replica with a batch of K B takes. The draw depends on (seed, step) alone, so that a run repeats, and goes on
in mid-epoch.

The size of such a batch says something of who is in it. So what is made of it is divided by L, which does not depend on
the draw (`Partition.expected`).

Cost: nothing is sent. Each worker draws every step's whole batch by itself.

Use it with privacy=dp_sgd, whose epsilon is then proven for the batches that are trained on. Nothing else takes it:
means over the samples of a step would make a small batch count as much as a large one.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .partition import FromAll, Partitioner

_BY_CHANCE = 3  # tells its seeds from those of the epochs' orders, of dealing by label, and of clusters


class Poisson(Partitioner):
    """Each step's batch is drawn from all samples, for all replicas together."""

    looks_at_targets = False
    draws = True

    def steps_per_epoch(self, samples: int, replicas: int, batch_size: int) -> int:
        return PoissonPartition(samples, replicas, batch_size, 0).steps_per_epoch

    def deal(
        self, targets: Tensor, replicas: int, batch_size: int, seed: int, inputs: Tensor | None = None
    ) -> "PoissonPartition":
        return PoissonPartition(len(targets), replicas, batch_size, seed)


@lru_cache(maxsize=4)  # replicas in one process may stand in different steps
def _drawn(samples: int, expected: int, seed: int, step: int) -> Tensor:
    """The samples of a step, in an order that is drawn, too. Not to be mutated."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_BY_CHANCE, step)))
    # so many of n as n throws of a coin give, any of them as likely as others: which is a throw for each
    size = rng.binomial(samples, expected / samples)
    return torch.from_numpy(rng.choice(samples, size, replace=False)).long()


@dataclass(frozen=True)
class PoissonPartition(FromAll):
    """`batch_size`: of a replica, on average, where there are so many samples."""

    @property
    def expected(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """L"""
        return min(self.replicas * self.batch_size, self.samples)

    @property
    def shares(self) -> tuple[float, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Returns the mean share of each replica, which is the weight of its sum."""
        return (1 / self.replicas,) * self.replicas

    def size(self, step: int, replica: int) -> int:
        return len(self._of(step, replica))

    def total(self, step: int) -> int:
        return len(_drawn(self.samples, self.expected, self.seed, step))

    def indices(self, step: int, replica: int) -> Tensor:
        return self._of(step, replica).clone()

    def _of(self, step: int, replica: int) -> Tensor:
        assert 0 <= replica < self.replicas, (replica, self.replicas)
        return _drawn(self.samples, self.expected, self.seed, step).tensor_split(self.replicas)[replica]
