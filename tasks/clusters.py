"""Parts whose samples lie close together, and are of one size: each replica owns one (You et al. 2015, "CA-SVM:
Communication-Avoiding Support Vector Machines on Distributed Systems", IPDPS).

Of n samples on P replicas, n mod P have ceil(n / P) and the others floor(n / P). Three of the paper's ways:

balanced (BKM): k-means (Lloyd 1982, "Least Squares Quantization in PCM") from P samples that are drawn,

    l(x) = argmin_j |x - c_j|^2,     c_j <- mean of those with l(x) = j,

until no sample moves, or so many times. Then each part that is too large gives those away that are furthest from its
centre, one after another, each to the nearest centre that has room.

first_come (FCFS): P samples that are drawn are the centres, and samples come in their order; each takes the nearest
centre that has room.

random (RA): the samples are shuffled and cut. Nothing is computed; it is what the others are compared with.

Whichever way, the centre of a part is the mean of its samples (`centres_of`): by it samples that are new are routed.

Deviation: in the paper every part has room for ceil(n / P) samples, which may leave the last ones much smaller; here
the n mod P larger ones are those that k-means made the largest (balanced), or that are full first (first_come).

Cost: each worker computes all of it by itself, from the same data and the seed, before training: nothing is sent, and
the modelled clock does not count it. Lloyd's passes take n P d products each, in float64, and n P distances are held.

Use it with sync=routed, whose experts know what lies close together. With modes that average it is the hard case, as
replicas see different data: for that, partition=dirichlet and by_label are what others publish. `balanced` costs the
most and gives the closest parts, `first_come` one pass; `random` costs nothing, and routing then gains nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from ..conf.errors import ConfigError
from .base import DataSpec
from .partition import OwnedPartition, Partitioner, whole_of

_DRAW = 2  # tells its seed from those of dealing by label, and of the epochs' orders
_AT_ONCE = 2**22  # entries that are taken to float64 at once


class Clusters(Partitioner):
    """Replica k owns the k-th part, the same in all epochs."""

    looks_at_targets = False
    looks_at_inputs = True
    owns = True

    def __init__(
        self,
        method: Literal["balanced", "first_come", "random"] = "balanced",
        passes: Annotated[int, Ge(1)] | None = None,
        drop_last: bool = False,
    ) -> None:
        """`passes`: of k-means, at most; None: 50."""
        if passes is not None and method != "balanced":
            raise ConfigError(
                f"partition.passes={passes}: are of k-means, and partition.method={method} makes none. Leave it out, "
                "or choose partition.method=balanced."
            )
        self.method, self.passes, self.drop_last = method, 50 if passes is None else passes, drop_last

    def steps_per_epoch(self, samples: int, replicas: int, batch_size: int) -> int:
        return -(-max(self._taken(samples, replicas, batch_size)) // batch_size)

    def in_last_step(self, samples: int, replicas: int, batch_size: int) -> int:
        before = (self.steps_per_epoch(samples, replicas, batch_size) - 1) * batch_size
        return sum(size > before for size in self._taken(samples, replicas, batch_size))

    def _taken(self, samples: int, replicas: int, batch_size: int) -> list[int]:
        """Returns the samples of each replica in an epoch. Raises `ConfigError`, see `whole_of`."""
        sizes = sizes_of(samples, replicas)
        return whole_of(sizes, batch_size) if self.drop_last else sizes

    def check(self, spec: DataSpec, replicas: int) -> None:
        why = unmeasured(spec)
        if why and self.method != "random":
            raise ConfigError(
                f"partition.method={self.method}: deals samples by how far they are from each other, and {why}; "
                "partition.method=random and partition=shuffled deal any data"
            )
        if spec.train_size is not None and spec.train_size < replicas:
            raise ConfigError(
                f"partition=clusters: {replicas} replicas cannot each own one of {spec.train_size} samples; "
                f"hardware.workers must make {spec.train_size} replicas or fewer"
            )

    def deal(
        self, targets: Tensor, replicas: int, batch_size: int, seed: int, inputs: Tensor | None = None
    ) -> OwnedPartition:
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_DRAW,)))
        sizes = sizes_of(len(targets), replicas)
        if self.method == "random":
            parts = np.split(rng.permutation(len(targets)), np.cumsum(sizes)[:-1])
        elif replicas == 1:
            parts = [np.arange(len(targets))]
        elif inputs is None:
            raise ConfigError(
                f"partition.method={self.method}: deals samples by how far they are from each other, and samples of "
                "these data are read when they are wanted, which k-means would take many passes over; "
                "partition.method=random and partition=shuffled deal any data"
            )
        else:
            drawn = np.sort(rng.choice(len(targets), replicas, replace=False))
            begin = _rows(inputs[torch.from_numpy(drawn)])
            if self.method == "balanced":
                labels = balanced(distances(inputs, kmeans(inputs, begin, self.passes)))
            else:
                labels = first_come(distances(inputs, begin))
            parts = [np.flatnonzero(labels == part) for part in range(replicas)]
        return OwnedPartition([np.sort(part) for part in parts], batch_size, seed, self.drop_last)


def unmeasured(spec: DataSpec) -> str:
    """Returns the reason why two samples of such data have no distance; "" if they have one."""
    if spec.inputs is not None:
        return "a sample of these data is several inputs"
    if spec.features is not None:
        return "samples of these data are sparse"
    if not spec.input_dtype.is_floating_point:
        return "samples of these data are no numbers but names of such (tokens)"
    return ""


def sizes_of(samples: int, parts: int) -> list[int]:
    """Returns the size of each part, larger ones first."""
    each, extra = divmod(samples, parts)
    return [each + (part < extra) for part in range(parts)]


def distances(inputs: Tensor, centres: Tensor) -> np.ndarray:
    """|x - c|^2, float64 [n, P], of inputs [n, ...] and centres float64 [P, d]. Raises ConfigError."""
    squares, found = centres.square().sum(1), list[Tensor]()
    for x in _chunks(inputs):
        # |x|^2 - 2 x c + |c|^2
        found.append((x.square().sum(1, keepdim=True) - 2 * x @ centres.T + squares).clamp_min_(0))
    every = torch.cat(found).numpy()
    if not np.isfinite(every).all():
        raise ConfigError("partition=clusters: an input is NaN or infinite, and has no distance to any other")
    return every


def kmeans(inputs: Tensor, begin: Tensor, passes: int) -> Tensor:
    """Lloyd's algorithm from the centres `begin`, float64 [P, d] -> those where it ends. One that is nearest to no
    sample stays where it is.
    """
    centres, labels = begin, None
    for _ in range(passes):
        nearest = distances(inputs, centres).argmin(1)
        if labels is not None and np.array_equal(nearest, labels):
            break
        labels = nearest
        sums, counts = _sums(inputs, labels, len(centres))
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return centres


def balanced(far: np.ndarray) -> np.ndarray:
    """Distances [n, P] to the centres of k-means -> each sample's part, [n]."""
    samples, parts = far.shape
    labels = far.argmin(1)
    counts = np.bincount(labels, minlength=parts)
    most = np.empty(parts, dtype=np.int64)
    most[np.argsort(-counts, kind="stable")] = sizes_of(samples, parts)
    room = np.maximum(most - counts, 0)
    for part in np.flatnonzero(counts > most):
        members = np.flatnonzero(labels == part)
        furthest_first = members[np.argsort(-far[members, part], kind="stable")]
        for sample in furthest_first[: counts[part] - most[part]]:
            labels[sample] = nearest = _nearest_with_room(far[sample], room > 0)
            room[nearest] -= 1
    return labels


def first_come(far: np.ndarray) -> np.ndarray:
    """Distances [n, P] to centres -> each sample's part, [n]."""
    samples, parts = far.shape
    each, extra = divmod(samples, parts)  # so many parts may have one more
    labels, counts = np.empty(samples, dtype=np.int64), np.zeros(parts, dtype=np.int64)
    for sample in range(samples):
        larger = np.count_nonzero(counts > each)
        labels[sample] = nearest = _nearest_with_room(far[sample], counts < each + (larger < extra))
        counts[nearest] += 1
    return labels


def _nearest_with_room(far: np.ndarray, has_room: np.ndarray) -> int:
    return int(np.where(has_room, far, np.inf).argmin())


def centres_of(inputs: Tensor, owned: Sequence[Tensor]) -> Tensor:
    """The mean of the inputs [n, ...] that each part owns, in their dtype [P, ...]."""
    labels = np.empty(len(inputs), dtype=np.int64)
    for part, members in enumerate(owned):
        labels[members.numpy()] = part
    sums, counts = _sums(inputs, labels, len(owned))
    return (sums / counts).to(inputs.dtype).view(len(owned), *inputs.shape[1:])


def _sums(inputs: Tensor, labels: np.ndarray, parts: int) -> tuple[Tensor, Tensor]:
    """Returns each part's sum of samples [P, d] and its number of samples [P, 1], float64."""
    belongs = torch.nn.functional.one_hot(torch.from_numpy(labels), parts).double()  # [n, P]
    sums = torch.zeros(parts, inputs[0].numel(), dtype=torch.float64)
    first = 0
    for x in _chunks(inputs):
        sums += belongs[first : first + len(x)].T @ x
        first += len(x)
    return sums, belongs.sum(0).unsqueeze(1)


def _chunks(inputs: Tensor) -> Iterator[Tensor]:
    """All samples in turn, float64 [some of them, d]: of data that are mapped from a file not all are in memory."""
    for chunk in inputs.split(max(1, _AT_ONCE // inputs[0].numel())):
        yield _rows(chunk)


def _rows(inputs: Tensor) -> Tensor:
    return inputs.flatten(1).double()
