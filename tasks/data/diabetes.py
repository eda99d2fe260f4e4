"""scikit-learn's diabetes: of 442 patients ten measurements, and how far the disease went in a year. Regression.

Source: Efron, Hastie, Johnstone, Tibshirani, "Least Angle Regression", Annals of Statistics 32, 2004. They come
with the package.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from ..base import Data, DataSpec, Split, at_most
from ..errors import MissingDataError
from .files import folder_of

SAMPLES = 442
TRAIN = SAMPLES * 4 // 5
MEAN, DEVIATION = 152.1, 77.0  # of all targets, which are 25 to 346
SPLIT_SEED = 0  # a constant: runs with different seeds share one test set


class Diabetes(Data):
    """Inputs [10] float32 and targets [] float32, both standardised; a fixed split of 353 for training and 89 for test.

    `limit`: take the first so many training samples.
    """

    preload = ("sklearn.datasets",)

    def __init__(self, limit: Annotated[int, Ge(1)] | None = None) -> None:
        self.limit = limit

    @property
    def spec(self) -> DataSpec:
        return DataSpec(
            input_shape=(10,),
            input_dtype=torch.float32,
            target_shape=(),
            target_dtype=torch.float32,
            train_size=at_most(TRAIN, self.limit),
            test_size=SAMPLES - TRAIN,
        )

    def load(self) -> tuple[Split, Split]:
        if self.found() is None:
            raise MissingDataError(self.how_to_get())
        from sklearn.datasets import load_diabetes  # a second to import: only where it is needed

        # [442, 10], each column of mean 0 and length 1, and [442]
        measured, progression = load_diabetes(return_X_y=True)
        order = np.random.default_rng(SPLIT_SEED).permutation(SAMPLES)
        inputs = torch.from_numpy(measured[order] * SAMPLES**0.5).float()
        targets = torch.from_numpy((progression[order] - MEAN) / DEVIATION).float()
        train, test = Split(inputs[:TRAIN], targets[:TRAIN]), Split(inputs[TRAIN:], targets[TRAIN:])
        return train.first(self.limit), test

    def how_to_get(self) -> str:
        return "The diabetes data come with scikit-learn: pip install scikit-learn."

    def found(self) -> str | None:
        return folder_of("sklearn")

    def files(self) -> tuple[Path, ...]:
        """Of the package; () where another version of it keeps them elsewhere."""
        folder = self.found()
        names = ("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz")
        found = [Path(folder) / "datasets" / "data" / name for name in names] if folder else []
        return tuple(file for file in found if file.is_file())
