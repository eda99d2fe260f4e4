"""scikit-learn's handwritten digits: 1,797 grey images of 8x8, 10 classes. They come with the package.

Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998 (its test part).
"""

from typing import Any

import numpy as np
import torch

from ..base import DataSpec, at_most
from .bundled import Bundled

SAMPLES = 1797
TRAIN = SAMPLES * 4 // 5
MEAN, DEVIATION = 4.884, 6.017  # of all pixels, which are 0 to 16
BLACK, WHITE = ((value - MEAN) / DEVIATION for value in (0, 16))
RANGE = float(np.float32(BLACK)), float(np.float32(WHITE))  # to the bit what the extreme pixels are


class Digits(Bundled):
    """Inputs [1, 8, 8] float32, standardised; a fixed split of 1,437 for training and 360 for test.

    `limit`: take the first so many training samples.
    """

    name, loader, stored = "digits", "load_digits", ("digits.csv.gz",)

    @property
    def spec(self) -> DataSpec:
        train = at_most(TRAIN, self.limit)
        return DataSpec((1, 8, 8), torch.float32, (), 10, train, SAMPLES - TRAIN, range=RANGE)

    def standardised(self, inputs: Any, targets: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """`inputs`: [n, 64] in 0 to 16."""
        return torch.from_numpy((inputs - MEAN) / DEVIATION).float().view(-1, 1, 8, 8), torch.from_numpy(targets).long()
