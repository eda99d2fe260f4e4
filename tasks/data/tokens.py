"""Sequences of random tokens, as many and as long as a plan, a prediction or a measurement of throughput asks for.

Token j of sequence i is a hash of the seed, i and j (the finalizer of SplitMix64: Steele et al. 2014, "Fast Splittable
Pseudorandom Number Generators", figure 17), modulo the size of the vocabulary. A batch is made when it is read, so that
samples take no memory; the order of an epoch takes 8 bytes a sample. There is nothing to learn but that all tokens are
equally likely: the loss of a model ends at the logarithm of the vocabulary's size.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from ..base import Data, DataSpec, Taken

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MOST_FOR_TEST = 100  # there is nothing to learn, and evaluations take their time
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


@dataclass(frozen=True)
class TokenSplit:
    """Samples `first` to `first + size` of all: inputs [n, context] int64, and the same moved on by one as targets."""

    first: int
    size: int
    context: int
    vocabulary: int
    seed: int
    targets: None = None
    weights: None = None

    def __len__(self) -> int:
        return self.size

    def take(self, index: Tensor | slice, drawn: int = 0) -> Taken:
        numbers = np.arange(*index.indices(self.size)) if isinstance(index, slice) else index.numpy()
        places = (self.first + numbers.astype(np.uint64))[:, None] * np.uint64(self.context + 1)
        key = _mixed(np.array([self.seed], dtype=np.uint64))
        hashed = _mixed(places + np.arange(self.context + 1, dtype=np.uint64) + key)
        tokens = torch.from_numpy((hashed % np.uint64(self.vocabulary)).astype(np.int64))
        return Taken(tokens[:, :-1].clone(), tokens[:, 1:].clone(), None)

    def weights_of(self, index: Tensor | slice, shape: torch.Size) -> None:
        return None


class Tokens(Data):
    """Next-token prediction on random tokens: `samples` for training, and a tenth as many, at most 100, for test."""

    def __init__(
        self,
        samples: Annotated[int, Ge(1), Le(2**40)] = 1_000_000,
        context: Annotated[int, Ge(1), Le(2**20)] = 1024,
        vocabulary: Annotated[int, Ge(2), Le(2**31)] = 50_257,
        seed: Annotated[int, Ge(0), Le(2**63)] = 0,
    ) -> None:
        """Args:
        samples: sequences of the training split.
        context: tokens of a sequence.
        vocabulary: different tokens.
        seed: of the tokens.
        """
        self.samples, self.context, self.vocabulary, self.seed = samples, context, vocabulary, seed

    @property
    def spec(self) -> DataSpec:
        context = (self.context,)
        return DataSpec(context, torch.int64, context, self.vocabulary, self.samples, self._for_test)

    def load(self) -> tuple[TokenSplit, TokenSplit]:
        return self._split(0, self.samples), self._split(self.samples, self._for_test)

    @property
    def _for_test(self) -> int:
        return min(max(self.samples // 10, 1), MOST_FOR_TEST)

    def _split(self, first: int, size: int) -> TokenSplit:
        return TokenSplit(first, size, self.context, self.vocabulary, self.seed)

    def how_to_get(self) -> str:
        return "They are made up as they are read."

    def found(self) -> str | None:
        return "made up from data.seed"


def _mixed(x: np.ndarray) -> np.ndarray:
    """Returns a hash of each number, as SplitMix64's generator makes of its counter."""
    x = (x + np.uint64(1)) * GOLDEN
    for shift, factor in MIX:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
