"""Federated clients that are no workers: the data are dealt to them, and workers take what their clients would.

Only places of samples are kept for each client; samples are read where they are trained on.
"""

import torch
from torch import Tensor

from ...conf.errors import ConfigError
from ...exchange.multiplexed import ClientSchedule, shares_of
from ...strategies import Sync
from ...tasks.partition import Partition, Partitioner
from ..config.experiment import Experiment
from .layout import RunLayout


class PartitionOfClients(Partition):
    """The samples of `shares.clients` clients, in the order in which workers train them. `dealt`: to the clients."""

    def __init__(self, dealt: Partition, shares: ClientSchedule) -> None:
        self._dealt, self._shares = dealt, shares
        self.replicas = shares.workers
        self.steps_per_epoch = shares.steps_per_epoch(dealt.steps_per_epoch)

    def size(self, step: int, replica: int) -> int:
        found = self._shares.at(step, replica, self._dealt.steps_per_epoch)
        return 0 if found is None else self._dealt.size(found[1], found[0])

    def sizes(self) -> set[int]:
        return self._dealt.sizes()

    def total(self, step: int) -> int:
        return sum(self.size(step, replica) for replica in range(self.replicas))

    @property
    def owners(self) -> int:
        return self._shares.clients

    @property
    def shares(self) -> tuple[float, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Returns the shares of workers: over rounds each trains as many clients as another."""
        return (1 / self.replicas,) * self.replicas

    def owned(self, owner: int) -> Tensor:
        return self._dealt.owned(owner)

    def indices(self, step: int, replica: int) -> Tensor:
        found = self._shares.at(step, replica, self._dealt.steps_per_epoch)
        return torch.empty(0, dtype=torch.int64) if found is None else self._dealt.indices(found[1], found[0])


def dealt_to(sync: Sync, layout: RunLayout) -> int:
    """Returns the number of partitions: one a replica, or one a client."""
    shares = shares_of(sync, layout.replicas)
    return layout.replicas if shares is None else shares.clients


def steps_per_epoch(
    partitioner: Partitioner, samples: int, sync: Sync, layout: RunLayout, batch_size: int
) -> int | None:
    """Returns the run's steps per epoch; None where they depend on the labels."""
    of_each = partitioner.steps_per_epoch(samples, dealt_to(sync, layout), batch_size)
    shares = shares_of(sync, layout.replicas)
    return of_each if shares is None or of_each is None else shares.steps_per_epoch(of_each)


def shared_out(dealt: Partition, sync: Sync, layout: RunLayout) -> Partition:
    """Converts a partition among as many as `dealt_to` says to one among replicas."""
    shares = shares_of(sync, layout.replicas)
    return dealt if shares is None else PartitionOfClients(dealt, shares)


def check_clients(experiment: Experiment, samples: int | None, sync: Sync, layout: RunLayout) -> None:
    """Each client trains on something. `samples`: None where the data must say. Raises `ConfigError`."""
    shares = shares_of(sync, layout.replicas)
    if shares is not None and samples is not None and samples < shares.clients:
        raise ConfigError(
            f"sync.clients={shares.clients}: each must have a sample, and data={experiment.data.name} has {samples} to "
            f"train on; at most sync.clients={samples}"
        )
