"""Which samples each replica takes at each step: a pure function of (seed, step, replica).

At any step the replicas' shares, one after another, are what a single replica with a batch of
replicas * batch_size takes. So K replicas that average their gradients by sample do what one does.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


@lru_cache(maxsize=2)  # two: replicas in one process may stand on either side of an epoch's end
def _permutation(samples: int, seed: int, epoch: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(samples)).long()


@dataclass(frozen=True)
class Partition:
    """Deals `samples` samples to `replicas` replicas, `batch_size` each a step, in a new order each epoch."""

    samples: int
    replicas: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        assert min(self.samples, self.replicas, self.batch_size) >= 1 and self.seed >= 0, self

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // (self.replicas * self.batch_size))

    def indices(self, step: int, replica: int) -> Tensor:
        """The samples of `replica` at `step`, int64 [its size]. `step` counts on over epochs."""
        assert 0 <= replica < self.replicas, (replica, self.replicas)
        sizes = self.sizes(step)
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        start = step_of_epoch * self.replicas * self.batch_size + sum(sizes[:replica])
        order = _permutation(self.samples, self.seed, epoch)
        return order[start : start + sizes[replica]].clone()

    def sizes(self, step: int) -> list[int]:
        """Every replica's number of samples at `step`: they differ by one at most, larger ones first.

        Only an epoch's last step is uneven, and there a replica may get none.
        """
        taken = step % self.steps_per_epoch * self.replicas * self.batch_size
        each, extra = divmod(min(self.replicas * self.batch_size, self.samples - taken), self.replicas)
        return [each + (replica < extra) for replica in range(self.replicas)]
