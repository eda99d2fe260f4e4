"""Which samples each replica takes at each step: a pure function of (seed, step, replica).

Shuffled: at any step the replicas' shares, one after another, are what a single replica with a batch of
replicas * batch_size takes. So K replicas that average their gradients by sample do what one does.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


class Partition(ABC):
    """The samples, dealt to replicas. `step` counts on over epochs; an epoch has as many steps for every replica."""

    replicas: int
    steps_per_epoch: int

    @abstractmethod
    def size(self, step: int, replica: int) -> int:
        """How many samples `replica` takes at `step`; 0 where it has none left in this epoch."""

    @abstractmethod
    def total(self, step: int) -> int:
        """How many samples all replicas take at `step`."""

    @abstractmethod
    def indices(self, step: int, replica: int) -> Tensor:
        """The samples of `replica` at `step`, int64 [its size]."""


class Partitioner(ABC):
    """A way to deal samples to replicas: a choice of the group `partition`."""

    @abstractmethod
    def steps_per_epoch(self, samples: int, replicas: int, batch_size: int) -> int | None:
        """Known from sizes alone, or None: it takes the labels."""

    @abstractmethod
    def deal(self, targets: Tensor, replicas: int, batch_size: int, seed: int) -> Partition:
        """`targets`: of the training split, int64 [samples, ...]. Raises `PartitionError` when they cannot be dealt."""


class Shuffled(Partitioner):
    """Every epoch in a new order, the same for all replicas: identically distributed shares."""

    def steps_per_epoch(self, samples: int, replicas: int, batch_size: int) -> int:
        return ShuffledPartition(samples, replicas, batch_size, 0).steps_per_epoch

    def deal(self, targets: Tensor, replicas: int, batch_size: int, seed: int) -> "ShuffledPartition":
        return ShuffledPartition(len(targets), replicas, batch_size, seed)


@lru_cache(maxsize=4)  # replicas in one process may stand in different epochs
def _permutation(samples: int, seed: int, epoch: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(samples)).long()


@dataclass(frozen=True)
class ShuffledPartition(Partition):
    """Deals `samples` samples to `replicas` replicas, `batch_size` each a step, in a new order each epoch.

    Replicas' sizes at a step differ by one at most, larger ones first. Only an epoch's last step is uneven, and there
    a replica may get none.
    """

    samples: int
    replicas: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        assert min(self.samples, self.replicas, self.batch_size) >= 1 and self.seed >= 0, self

    @property
    def steps_per_epoch(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return -(-self.samples // (self.replicas * self.batch_size))

    def size(self, step: int, replica: int) -> int:
        assert 0 <= replica < self.replicas, (replica, self.replicas)
        each, extra = divmod(self.total(step), self.replicas)
        return each + (replica < extra)

    def total(self, step: int) -> int:
        whole = self.replicas * self.batch_size
        return min(whole, self.samples - step % self.steps_per_epoch * whole)

    def indices(self, step: int, replica: int) -> Tensor:
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        each, extra = divmod(self.total(step), self.replicas)
        start = step_of_epoch * self.replicas * self.batch_size + replica * each + min(replica, extra)
        order = _permutation(self.samples, self.seed, epoch)
        return order[start : start + self.size(step, replica)].clone()
