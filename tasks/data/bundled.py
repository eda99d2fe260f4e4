"""The base of the data sets that come with scikit-learn."""

from abc import abstractmethod
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge

from ..base import Data, Split
from ..errors import MissingDataError
from .files import folder_of

SPLIT_SEED = 0  # a constant: runs with different seeds share one test set


class Bundled(Data):
    """A data set of scikit-learn with a fixed split: four fifths for training, the rest for test.

    `limit`: take the first so many training samples.
    """

    preload = ("sklearn.datasets",)
    name: ClassVar[str]
    loader: ClassVar[str]  # a function of sklearn.datasets
    stored: ClassVar[tuple[str, ...]]  # the names of its files

    def __init__(self, limit: Annotated[int, Ge(1)] | None = None) -> None:
        self.limit = limit

    @abstractmethod
    def standardised(self, inputs: Any, targets: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns scikit-learn's arrays [n, d] and [n] as tensors of the spec's shapes."""

    def load(self) -> tuple[Split, Split]:
        if self.found() is None:
            raise MissingDataError(self.how_to_get())
        raw, wanted = arrays_of(self.loader)
        order = np.random.default_rng(SPLIT_SEED).permutation(len(raw))
        inputs, targets = self.standardised(raw[order], wanted[order])
        train = len(raw) * 4 // 5
        first, rest = Split(inputs[:train], targets[:train]), Split(inputs[train:], targets[train:])
        return first.first(self.limit), rest

    def how_to_get(self) -> str:
        return f"The {self.name} come with scikit-learn: pip install scikit-learn."

    def found(self) -> str | None:
        return folder_of("sklearn")

    def files(self) -> tuple[Path, ...]:
        """Returns the files in the package; () where another version of it keeps them elsewhere."""
        folder = self.found()
        found = [Path(folder) / "datasets" / "data" / name for name in self.stored] if folder else []
        return tuple(file for file in found if file.is_file())


@cache  # to read the file takes 20 ms, and each run of a sweep reads it
def arrays_of(loader: str) -> tuple[Any, Any]:
    """Returns the inputs [n, d] and targets [n] of a loader of scikit-learn. The caller copies them."""
    from sklearn import datasets  # a second to import: only where it is needed

    return getattr(datasets, loader)(return_X_y=True)
