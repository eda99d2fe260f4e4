"""The samples that each replica takes at each step: a pure function of (seed, step, replica).

Shuffled: at any step the replicas' shares, one after another, are what a single replica with a batch of
replicas * batch_size takes. So K replicas that average their gradients by sample do what one does.

Dirichlet and ByLabel: each replica owns samples of its own, of other classes and other in number than its peers'
(not identically distributed: non-IID), and passes over them once an epoch. So it is with Clusters (clusters.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from ..conf.errors import ConfigError
from .base import DataSpec

_DEAL = 1  # tells the seed of dealing from those of the epochs' orders


class Partition(ABC):
    """The samples, dealt to replicas. `step` counts on over epochs; an epoch has as many steps for every replica."""

    replicas: int
    steps_per_epoch: int
    expected: int | None = None  # samples of a step over all replicas on average, where they are drawn by chance

    @abstractmethod
    def size(self, step: int, replica: int) -> int:
        """Returns the number of samples that `replica` takes at `step`; 0 where it has none left in this epoch."""

    @abstractmethod
    def total(self, step: int) -> int:
        """Returns the number of samples that all replicas take at `step`."""

    @abstractmethod
    def indices(self, step: int, replica: int) -> Tensor:
        """The samples of `replica` at `step`, int64 [its size]."""

    @property
    def owners(self) -> int:
        """Returns the number of owners of samples: the replicas, or the clients that these train in turn."""
        return self.replicas

    def owned(self, owner: int) -> Tensor:
        """The samples that are this owner's, in every epoch, int64 [n_k]; of a partition that deals such."""
        raise AssertionError(f"{type(self).__name__} deals each epoch anew")

    def sizes(self) -> set[int]:
        """Returns the numbers of samples that a replica takes in a step of the run."""
        return {self.size(step, replica) for step in range(self.steps_per_epoch) for replica in range(self.replicas)}

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """n_k / n: of an epoch's samples, how many each replica takes."""
        sizes = [self._of_epoch(replica) for replica in range(self.replicas)]
        samples = sum(sizes)
        return tuple(size / samples for size in sizes)

    def _of_epoch(self, replica: int) -> int:
        """n_k"""
        return sum(self.size(step, replica) for step in range(self.steps_per_epoch))


class Partitioner(ABC):
    """A way to deal samples to replicas: a choice of the group `partition`.

    `looks_at_targets`: else `deal` is given targets without data, of which there may be many on a disk.
    `looks_at_inputs`: `deal` is given them. `owns`: replicas have samples of their own, the same in all epochs.
    `draws`: each batch by chance, so that its size is one, too; see `Partition.expected`.
    """

    looks_at_targets: bool = True
    looks_at_inputs: bool = False
    owns: bool = False
    draws: bool = False
    drop_last: bool = False  # leaves out the last batch of an epoch where it is smaller than the others
    copies: int = 1  # so many replicas in a row take the same samples

    @abstractmethod
    def steps_per_epoch(self, samples: int, replicas: int, batch_size: int) -> int | None:
        """Known from sizes alone, or None: it takes the labels."""

    def in_last_step(self, samples: int, replicas: int, batch_size: int) -> int | None:
        """The replicas that have samples in an epoch's last step; None where `steps_per_epoch` is."""
        return None

    def check(self, spec: DataSpec, replicas: int) -> None:
        """Refuse what cannot be dealt, as far as it is known without data. Raises `ConfigError`."""

    @abstractmethod
    def deal(
        self, targets: Tensor, replicas: int, batch_size: int, seed: int, inputs: Tensor | None = None
    ) -> Partition:
        """`targets`: of the training split, [samples, ...]. `inputs`: likewise, where it looks at them; None where
        samples are read when they are wanted. Raises `ConfigError` when they cannot be dealt.
        """


class Shuffled(Partitioner):
    """Every epoch in a new order, the same for all replicas: identically distributed shares."""

    looks_at_targets = False

    def __init__(self, drop_last: bool = False) -> None:
        self.drop_last = drop_last

    def steps_per_epoch(self, samples: int, replicas: int, batch_size: int) -> int:
        return ShuffledPartition(samples, replicas, batch_size, 0, self.drop_last).steps_per_epoch

    def in_last_step(self, samples: int, replicas: int, batch_size: int) -> int:
        dealt = ShuffledPartition(samples, replicas, batch_size, 0, self.drop_last)
        return min(dealt.total(dealt.steps_per_epoch - 1), replicas)

    def deal(
        self, targets: Tensor, replicas: int, batch_size: int, seed: int, inputs: Tensor | None = None
    ) -> "ShuffledPartition":
        return ShuffledPartition(len(targets), replicas, batch_size, seed, self.drop_last)


@lru_cache(maxsize=4)  # replicas in one process may stand in different epochs
def _permutation(samples: int, seed: int, epoch: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(samples)).long()


@dataclass(frozen=True)
class FromAll(Partition):
    """Each step's samples come from all `samples` samples, `batch_size` of them for each of `replicas` replicas."""

    samples: int
    replicas: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        assert min(self.samples, self.replicas, self.batch_size) >= 1 and self.seed >= 0, self

    @cached_property
    def steps_per_epoch(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return -(-self.samples // (self.replicas * self.batch_size))


@dataclass(frozen=True)
class ShuffledPartition(FromAll):
    """Deals all samples in a new order each epoch.

    Replicas' sizes at a step differ by one at most, larger ones first. Only an epoch's last step is uneven, and there
    a replica may get none. `drop_last` leaves the uneven step out. Raises `ConfigError` if no step is left.
    """

    drop_last: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps_per_epoch == 0:
            whole = f"A step of {self.replicas} replicas takes {self.replicas * self.batch_size} samples"
            raise nothing_left(whole, self.samples, self.samples // self.replicas)

    @cached_property
    def steps_per_epoch(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        whole = self.replicas * self.batch_size
        return self.samples // whole if self.drop_last else -(-self.samples // whole)

    def size(self, step: int, replica: int) -> int:
        assert 0 <= replica < self.replicas, (replica, self.replicas)
        each, extra = divmod(self.total(step), self.replicas)
        return each + (replica < extra)

    def sizes(self) -> set[int]:
        last = self.steps_per_epoch - 1  # the only uneven one
        return {self.size(step, replica) for step in (0, last) for replica in (0, self.replicas - 1)}

    def total(self, step: int) -> int:
        whole = self.replicas * self.batch_size
        return min(whole, self.samples - step % self.steps_per_epoch * whole)

    def _of_epoch(self, replica: int) -> int:
        last = self.steps_per_epoch - 1  # the only uneven one
        return last * self.batch_size + self.size(last, replica)

    def indices(self, step: int, replica: int) -> Tensor:
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        each, extra = divmod(self.total(step), self.replicas)
        start = step_of_epoch * self.replicas * self.batch_size + replica * each + min(replica, extra)
        order = _permutation(self.samples, self.seed, epoch)
        return order[start : start + self.size(step, replica)].clone()


class Repeated(Partitioner):
    """Deals to groups of `copies` replicas in a row, whose members all take what another partitioner deals to one."""

    def __init__(self, each: Partitioner, copies: int) -> None:
        """The replicas are a multiple of `copies`."""
        self.each, self.copies, self.looks_at_targets = each, copies, each.looks_at_targets
        self.looks_at_inputs = each.looks_at_inputs

    def steps_per_epoch(self, samples: int, replicas: int, batch_size: int) -> int | None:
        return self.each.steps_per_epoch(samples, replicas // self.copies, batch_size)

    def check(self, spec: DataSpec, replicas: int) -> None:
        self.each.check(spec, replicas // self.copies)

    def deal(
        self, targets: Tensor, replicas: int, batch_size: int, seed: int, inputs: Tensor | None = None
    ) -> "RepeatedPartition":
        dealt = self.each.deal(targets, replicas // self.copies, batch_size, seed, inputs)
        return RepeatedPartition(dealt, self.copies)


@dataclass(frozen=True)
class RepeatedPartition(Partition):
    """`total` counts each sample once, so that the shares of a group's members are those of the group."""

    each: Partition
    copies: int

    @property
    def replicas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.each.replicas * self.copies

    @property
    def steps_per_epoch(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.each.steps_per_epoch

    def size(self, step: int, replica: int) -> int:
        return self.each.size(step, replica // self.copies)

    def sizes(self) -> set[int]:
        return self.each.sizes()

    def total(self, step: int) -> int:
        return self.each.total(step)

    def indices(self, step: int, replica: int) -> Tensor:
        return self.each.indices(step, replica // self.copies)


class Dirichlet(Partitioner):
    """Deals each class so that replica k owns the share p_k, p ~ Dirichlet(alpha, ..., alpha) (Yurochkin et al. 2019,
    section 4).

    Small `alpha`: few classes a replica, and replicas of very different sizes; large: close to identically distributed.
    A replica that is left with nothing gets a sample of the one that has most.
    """

    owns = True

    def __init__(self, alpha: Annotated[float, Gt(0), Le(1e9)] = 0.5, drop_last: bool = False) -> None:
        self.alpha, self.drop_last = alpha, drop_last

    def steps_per_epoch(self, samples: int, replicas: int, batch_size: int) -> None:
        return None

    def check(self, spec: DataSpec, replicas: int) -> None:
        self._check(spec.target_shape, spec.target_dtype, spec.train_size, replicas)

    def _check(self, shape: Sequence[int], dtype: torch.dtype, samples: int | None, replicas: int) -> None:
        _check_labels("dirichlet", shape, dtype)
        if samples is not None and samples < replicas:
            raise ConfigError(
                f"partition=dirichlet: {replicas} replicas cannot each own one of {samples} samples; "
                f"hardware.workers must make {samples} replicas or fewer"
            )

    def deal(
        self, targets: Tensor, replicas: int, batch_size: int, seed: int, inputs: Tensor | None = None
    ) -> "OwnedPartition":
        self._check(targets.shape[1:], targets.dtype, len(targets), replicas)
        _check_known("dirichlet", targets)
        labels = targets.numpy()
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_DEAL,)))
        owned: list[list[np.ndarray]] = [[] for _ in range(replicas)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            p = rng.dirichlet(np.full(replicas, self.alpha))  # [replicas]
            cuts = np.rint(np.cumsum(p)[:-1] * len(members)).astype(np.int64)
            for mine, piece in zip(owned, np.split(members, cuts), strict=True):
                mine.append(piece)
        dealt = _none_empty([np.concatenate(mine) for mine in owned])
        return OwnedPartition(dealt, batch_size, seed, self.drop_last)


class ByLabel(Partitioner):
    """Sorted by label, cut into labels * replicas shards of one size, `labels` shards to each replica, at random.

    McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", section 3, call
    it pathological: most replicas have samples of `labels` classes only.
    """

    owns = True

    def __init__(self, labels: Annotated[int, Ge(1)] = 2, drop_last: bool = False) -> None:
        self.labels, self.drop_last = labels, drop_last

    def steps_per_epoch(self, samples: int, replicas: int, batch_size: int) -> None:
        return None

    def check(self, spec: DataSpec, replicas: int) -> None:
        self._check(spec.target_shape, spec.target_dtype, spec.train_size, replicas)
        if self.labels > spec.classes:
            raise ConfigError(f"partition.labels={self.labels}: must be {spec.classes} or less, the classes of data")

    def _check(self, shape: Sequence[int], dtype: torch.dtype, samples: int | None, replicas: int) -> None:
        _check_labels("by_label", shape, dtype)
        count = self.labels * replicas
        if samples is not None and samples < count:
            raise ConfigError(
                f"partition.labels={self.labels}: {replicas} replicas take {count} shards, and there are "
                f"{samples} samples; fewer hardware.workers (or sync.clients) or partition=dirichlet would do"
            )

    def deal(
        self, targets: Tensor, replicas: int, batch_size: int, seed: int, inputs: Tensor | None = None
    ) -> "OwnedPartition":
        self._check(targets.shape[1:], targets.dtype, len(targets), replicas)
        _check_known("by_label", targets)
        labels, count = targets.numpy(), self.labels * replicas
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_DEAL,)))
        shards = np.array_split(np.argsort(labels, kind="stable"), count)  # sizes differ by one at most
        hands = rng.permutation(count).reshape(replicas, self.labels)
        dealt = [np.concatenate([shards[i] for i in hand]) for hand in hands]
        return OwnedPartition(dealt, batch_size, seed, self.drop_last)


class OwnedPartition(Partition):
    """Replica k owns `owned[k]`, n_k samples, and takes each of them once an epoch, `batch_size` a step.

    An epoch lasts until the largest has seen its own; smaller ones take nothing in its last steps. Each takes its
    samples in the order in which `Shuffled` deals that epoch's, so that one replica alone trains alike under both.
    """

    def __init__(self, owned: Sequence[np.ndarray], batch_size: int, seed: int, drop_last: bool = False) -> None:
        """`owned`: together every sample exactly once, nobody without one. Raises `ConfigError`, see `whole_of`."""
        self.replicas, self.batch_size, self.seed = len(owned), batch_size, seed
        self._owned = owned
        sizes = [len(mine) for mine in owned]
        assert min(sizes) >= 1, sizes
        self.samples = sum(sizes)
        self._sizes = whole_of(sizes, batch_size) if drop_last else sizes  # n_k
        self.steps_per_epoch = -(-max(self._sizes) // batch_size)
        full, rest = np.divmod(self._sizes, batch_size)  # whole batches, and samples in the last, uneven one
        whole = self.replicas - np.cumsum(np.bincount(full, minlength=self.steps_per_epoch))  # still full at each step
        uneven = np.bincount(full, weights=rest, minlength=self.steps_per_epoch).astype(np.int64)
        self._totals = (whole * batch_size)[: self.steps_per_epoch] + uneven[: self.steps_per_epoch]
        self._orders: dict[int, tuple[int, Tensor]] = {}  # replica -> (epoch, its samples in that epoch's order)

    def size(self, step: int, replica: int) -> int:
        taken = step % self.steps_per_epoch * self.batch_size
        return min(max(self._sizes[replica] - taken, 0), self.batch_size)

    def total(self, step: int) -> int:
        return int(self._totals[step % self.steps_per_epoch])

    def indices(self, step: int, replica: int) -> Tensor:
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        start = step_of_epoch * self.batch_size
        return self._order(epoch, replica)[start : start + self.size(step, replica)].clone()

    def owned(self, owner: int) -> Tensor:
        return torch.from_numpy(self._owned[owner])

    def sizes(self) -> set[int]:
        return {size for each in self._sizes for size in (min(each, self.batch_size), each % self.batch_size)}

    def _of_epoch(self, replica: int) -> int:
        return self._sizes[replica]

    def _order(self, epoch: int, replica: int) -> Tensor:
        known, order = self._orders.get(replica, (-1, None))
        if order is None or known != epoch:
            mine = self._owned[replica]
            order = torch.from_numpy(mine[np.argsort(_places(self.samples, self.seed, epoch)[mine])])
            self._orders[replica] = epoch, order
        return order


def whole_of(sizes: Sequence[int], batch_size: int) -> list[int]:
    """Returns the samples of each replica that fill whole batches. Raises `ConfigError` if one has no batch."""
    least = min(sizes)
    if least < batch_size:
        replica = sizes.index(least)
        raise nothing_left(f"A batch of replica {replica} takes {batch_size} samples", least, least)
    return [size // batch_size * batch_size for size in sizes]


def nothing_left(whole: str, samples: int, most: int) -> ConfigError:
    """Returns the refusal of `drop_last`. `most`: the largest batch size with a whole batch."""
    return ConfigError(
        f"drop_last=true: leaves nothing to train on. {whole}, and there are {samples}. Choose batch_size={most} or "
        "less, or drop_last=false."
    )


@lru_cache(maxsize=4)
def _places(samples: int, seed: int, epoch: int) -> np.ndarray:
    """Returns each sample's position in the epoch's order."""
    places = np.empty(samples, dtype=np.int64)
    places[_permutation(samples, seed, epoch).numpy()] = np.arange(samples)
    return places


def _check_labels(choice: str, target_shape: Sequence[int], target_dtype: torch.dtype) -> None:
    if target_dtype.is_floating_point:
        raise ConfigError(
            f"partition={choice} deals samples by their label, and the targets of these data are numbers; "
            "partition=shuffled deals any data"
        )
    if target_shape:
        raise ConfigError(
            f"partition={choice} deals samples by their label, and a sample of these data has "
            f"{'x'.join(map(str, target_shape))} targets; partition=shuffled deals any data"
        )


def _check_known(choice: str, targets: Tensor) -> None:
    if targets.is_meta:
        raise ConfigError(
            f"partition={choice} deals samples by their label, and of these data no label is known before its sample "
            "is read; a torch Dataset says them in an attribute `targets`, and partition=shuffled deals any data"
        )


def _none_empty(owned: list[np.ndarray]) -> list[np.ndarray]:
    sizes = np.array([len(mine) for mine in owned])
    for replica in np.flatnonzero(sizes == 0):
        richest = np.argmax(sizes)
        owned[replica], owned[richest] = owned[richest][-1:], owned[richest][:-1]
        sizes[replica], sizes[richest] = 1, sizes[richest] - 1
    return owned
