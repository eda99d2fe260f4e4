"""The samples that each client of a federation owns: some of the training split, and as large a share of the test
split.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .base import Readable, Taken


@dataclass(frozen=True)
class Subset:
    """The samples `index`, int64 [n], of a split."""

    split: Readable
    index: Tensor

    @property
    def targets(self) -> Tensor | None:
        known = self.split.targets
        return None if known is None else known[self.index]

    @property
    def weights(self) -> Tensor | None:
        known = self.split.weights
        return None if known is None else known[self.index]

    def __len__(self) -> int:
        return len(self.index)

    def take(self, index: Tensor | slice, drawn: int = 0) -> Taken:
        return self.split.take(self.index[index], drawn)

    def weights_of(self, index: Tensor | slice, shape: torch.Size) -> Tensor | None:
        return self.split.weights_of(self.index[index], shape)


@dataclass(frozen=True)
class Clients:
    """`owned`: of each client, its samples of the training split, int64 [n_k]."""

    train_split: Readable
    test_split: Readable
    owned: Sequence[Tensor]

    @cached_property
    def train(self) -> list[Subset]:
        return [Subset(self.train_split, index) for index in self.owned]

    @cached_property
    def test(self) -> list[Subset]:
        """Returns the clients' test samples. Each client has the same share of each label as in the training split;
        some may have none.
        """
        train, test = self.train_split.targets, self.test_split.targets
        assert train is not None and test is not None, "who deals by labels knows them"
        dealt = dealt_alike([train[index].numpy() for index in self.owned], test.numpy())
        return [Subset(self.test_split, torch.from_numpy(index)) for index in dealt]

    def labels(self) -> np.ndarray:
        """[clients, labels]: how many samples of each label a client trains on."""
        known = self.train_split.targets
        assert known is not None, "who deals by labels knows them"
        width = int(known.max()) + 1
        return np.stack([np.bincount(known[index].numpy(), minlength=width) for index in self.owned])


def dealt_alike(owned: Sequence[np.ndarray], labels: np.ndarray) -> list[np.ndarray]:
    """Numbers of samples with these `labels`, [n], for each client: of each label as large a share as it has of those
    that are `owned`, labels by client. Every sample whose label somebody has goes to one client.
    """
    hands: list[list[np.ndarray]] = [[] for _ in owned]
    for label in np.unique(labels):
        counts = np.array([np.count_nonzero(mine == label) for mine in owned])
        if counts.sum() == 0:
            continue
        members = np.flatnonzero(labels == label)
        cuts = np.rint(np.cumsum(counts)[:-1] / counts.sum() * len(members)).astype(np.int64)
        for hand, piece in zip(hands, np.split(members, cuts), strict=True):
            hand.append(piece)
    return [np.sort(np.concatenate(hand)) if hand else np.empty(0, dtype=np.int64) for hand in hands]
