"""scikit-learn's diabetes: of 442 patients ten measurements, and how far the disease went in a year. Regression.

Source: Efron, Hastie, Johnstone, Tibshirani, "Least Angle Regression", Annals of Statistics 32, 2004. They come
with the package.
"""

from typing import Any

import torch

from ..base import DataSpec, at_most
from .bundled import Bundled

SAMPLES = 442
TRAIN = SAMPLES * 4 // 5
MEAN, DEVIATION = 152.1, 77.0  # of all targets, which are 25 to 346


class Diabetes(Bundled):
    """Inputs [10] float32 and targets [] float32, both standardised; a fixed split of 353 for training and 89 for test.

    `limit`: take the first so many training samples.
    """

    name, loader = "diabetes data", "load_diabetes"
    stored = ("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz")

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

    def standardised(self, inputs: Any, targets: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """`inputs`: each of the ten columns has mean 0 and length 1."""
        scaled = torch.from_numpy(inputs * SAMPLES**0.5).float()
        return scaled, torch.from_numpy((targets - MEAN) / DEVIATION).float()
