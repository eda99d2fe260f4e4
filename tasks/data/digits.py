"""scikit-learn's handwritten digits: 1,797 grey images of 8x8, 10 classes. They come with the package.

Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998 (its test part).
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from ..base import Data, DataSpec, Split, at_most
from ..errors import MissingDataError
from .files import folder_of

SAMPLES = 1797
TRAIN = SAMPLES * 4 // 5
MEAN, DEVIATION = 4.884, 6.017  # of all pixels, which are 0 to 16
BLACK, WHITE = ((value - MEAN) / DEVIATION for value in (0, 16))
RANGE = float(np.float32(BLACK)), float(np.float32(WHITE))  # to the bit what the extreme pixels are
SPLIT_SEED = 0  # a constant: runs with different seeds share one test set


class Digits(Data):
    """Inputs [1, 8, 8] float32, standardised; a fixed split of 1,437 for training and 360 for test.

    `limit`: take the first so many training samples.
    """

    preload = ("sklearn.datasets",)

    def __init__(self, limit: Annotated[int, Ge(1)] | None = None) -> None:
        self.limit = limit

    @property
    def spec(self) -> DataSpec:
        train = at_most(TRAIN, self.limit)
        return DataSpec((1, 8, 8), torch.float32, (), 10, train, SAMPLES - TRAIN, range=RANGE)

    def load(self) -> tuple[Split, Split]:
        if self.found() is None:
            raise MissingDataError(self.how_to_get())
        from sklearn.datasets import load_digits  # a second to import: only where it is needed

        pixels, labels = load_digits(return_X_y=True)  # [1797, 64] in 0 to 16, [1797]
        order = np.random.default_rng(SPLIT_SEED).permutation(SAMPLES)
        inputs = torch.from_numpy((pixels[order] - MEAN) / DEVIATION).float().view(-1, 1, 8, 8)
        targets = torch.from_numpy(labels[order]).long()
        train, test = Split(inputs[:TRAIN], targets[:TRAIN]), Split(inputs[TRAIN:], targets[TRAIN:])
        return train.first(self.limit), test

    def how_to_get(self) -> str:
        return "The digits come with scikit-learn: pip install scikit-learn."

    def found(self) -> str | None:
        return folder_of("sklearn")

    def files(self) -> tuple[Path, ...]:
        """Of the package; () where another version of it keeps them elsewhere."""
        folder = self.found()
        images = Path(folder) / "datasets" / "data" / "digits.csv.gz" if folder else None
        return (images,) if images is not None and images.is_file() else ()
