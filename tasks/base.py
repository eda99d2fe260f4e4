"""What a data set offers. A model is any nn.Sequential whose constructor takes a `DataSpec` first."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class DataSpec:
    """What a model must know of the data, known without loading them.

    Targets are labels (`target_dtype` int64: numbers of `classes` classes), or numbers to be predicted (a floating
    `target_dtype`: regression; then `classes` is 0). `target_shape` is () for one label or number a sample, (context,)
    for text and (k,) for k numbers. The sizes count samples; None says that they are known only once the file is there.

    `features`: None for dense samples. Else a sample is sparse, with `nonzeros` of so many features: its input is
    [2, nonzeros] float64, the numbers of the features above their values. One that has fewer repeats a feature of its
    own with the value 0 (feature 0, if it has none), so that no other is ever written to.
    """

    input_shape: tuple[int, ...]
    input_dtype: torch.dtype
    target_shape: tuple[int, ...]
    classes: int = 0
    train_size: int | None = None
    test_size: int | None = None
    features: int | None = None
    target_dtype: torch.dtype = torch.int64

    @property
    def targets(self) -> Literal["labels", "numbers"]:
        return "numbers" if self.target_dtype.is_floating_point else "labels"

    @property
    def outputs(self) -> int:
        """The width of a model's last layer: scores for each label, or the numbers of a sample."""
        return prod(self.target_shape) if self.targets == "numbers" else self.classes


@dataclass(frozen=True)
class Split:
    """inputs [n, *input_shape] and targets [n, *target_shape], in host memory. Not to be mutated.

    The engine holds them to the data set's `spec` once they are loaded.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def first(self, n: int | None) -> "Split":
        """The first `n` samples (fewer where there are fewer); None takes all."""
        return self if n is None else Split(self.inputs[:n], self.targets[:n])


class Data(ABC):
    """A training and a test split, the same on every machine that has the data.

    A data set of your own needs `spec` and `load`; the rest is for those that may be missing (docs/own_data.md).
    `preload`: modules that loading takes long to import; they are imported once, before workers are forked.
    """

    preload: tuple[str, ...] = ()

    @property
    @abstractmethod
    def spec(self) -> DataSpec:
        """Never loads the data nor needs them."""

    @abstractmethod
    def load(self) -> tuple[Split, Split]:
        """The training and the test split. Raises MissingDataError or CorruptDataError."""

    def how_to_get(self) -> str:
        """One sentence for a person: the ways to get the data."""
        return f"{type(self).__module__}.{type(self).__qualname__}.load() makes or reads them."

    def found(self) -> str | None:
        """Where the data are on this machine, without reading them; None when they are missing: `load` fetches them."""
        return f"where {type(self).__module__}.{type(self).__qualname__}.load() has them"

    def files(self) -> tuple[Path, ...]:
        """What `load` reads: a run is not resumed once one of them has other content than when it began."""
        return ()


def at_most(size: int, limit: int | None) -> int:
    """The number of samples that `Split.first(limit)` leaves of `size`."""
    return size if limit is None else min(size, limit)
