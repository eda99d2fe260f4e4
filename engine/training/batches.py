"""A replica's batch of a step, and the random numbers of a step."""

import torch
from torch import Tensor

from ...strategies import Batch
from ...tasks.base import Readable
from ...tasks.partition import Partition
from ..config.fits import weighted
from ..features.hook_list import HookList
from .feed import Feed


class Taking:
    """Takes a replica's batches, on the device."""

    def __init__(
        self,
        train: Readable,
        feed: Feed,
        partition: Partition,
        replica: int,
        device: torch.device,
        together: bool,
    ) -> None:
        """`together`: all replicas step together, and the weights of their samples are over one mean."""
        self._train, self._feed, self._partition, self._replica = train, feed, partition, replica
        self._device, self._together = device, together

    def take(self, step: int, hooks: HookList) -> Batch:
        """Returns the batch of `step`, as `hooks` have it."""
        taken, partition = hooks.samples(self._feed.take(step), step), self._partition
        weights = None if taken.weights is None else self._of_mean_one(step, taken.weights)
        targets = weighted(taken.targets, weights).to(self._device)
        inputs, expected = taken.inputs.to(self._device), partition.expected
        if expected is None:
            return Batch(inputs, targets, partition.total(step), step)
        return Batch(inputs, targets, expected, step, expected=expected / partition.replicas)

    def _of_mean_one(self, step: int, weights: Tensor) -> Tensor:
        """Returns the weights of a batch over their mean: over the samples of all replicas where these step together,
        so that the mean of their gradients is that of the weighted mean over all samples, sum_i w_i l_i / sum_i w_i.
        """
        if not self._together or self._partition.replicas == 1:
            return of_mean_one(weights, weights)
        replicas = [self._partition.indices(step, replica) for replica in range(self._partition.replicas)]
        shape = torch.Size([sum(map(len, replicas)), *weights.shape[1:]])
        everyone = self._train.weights_of(torch.cat(replicas), shape)
        assert everyone is not None, "a batch has weights because the split has"
        return of_mean_one(weights, everyone)


def of_mean_one(weights: Tensor, everyone: Tensor) -> Tensor:
    """`weights` over the mean of `everyone`'s; zeros where all of these are."""
    mean = everyone.double().mean()
    weights = weights.double()
    return weights / mean if mean > 0 else torch.zeros_like(weights)


def seed_for(seed: int, step: int, draws_as: int, device: torch.device) -> None:
    """`draws_as`: 0 is a lone worker's."""
    seed_generators(((seed * 1_000_003 + step) * 65_537 + draws_as) % 2**63, device)  # what torch's generators take


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds torch's generators, that of `device` included."""
    # not torch.manual_seed: before CUDA is used it keeps every call, with its stack, for later
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
