"""Synthetic images of a disk in noise, with a label for each pixel: whether it is in the disk."""

from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le

from ..base import Data, DataSpec, Split


class Disks(Data):
    """Inputs [1, side, side] float32, targets [side, side] of two classes. `samples` for training and a quarter as many
    for test, drawn from `seed`.

    A disk has its centre (a, b) anywhere in the image, and a radius r of an eighth to three eighths of the side. Pixel
    (i, j) has the label 1 if (i - a)^2 + (j - b)^2 <= r^2, and the brightness of its label plus normal noise of the
    deviation `noise`: a pixel alone says little, and many around it say much.
    """

    def __init__(
        self,
        side: Annotated[int, Ge(8), Le(2**14)] = 512,
        samples: Annotated[int, Ge(1)] = 32,
        noise: Annotated[float, Ge(0)] = 1.0,
        seed: Annotated[int, Ge(0)] = 0,
    ) -> None:
        self.side, self.samples, self.noise, self.seed = side, samples, noise, seed

    @property
    def spec(self) -> DataSpec:
        sides = self.side, self.side
        return DataSpec((1, *sides), torch.float32, sides, 2, self.samples, max(self.samples // 4, 1))

    def load(self) -> tuple[Split, Split]:
        rng = np.random.default_rng(self.seed)
        places = np.arange(self.side)

        def split(samples: int) -> Split:
            inputs = torch.empty(samples, 1, self.side, self.side)
            targets = torch.empty(samples, self.side, self.side, dtype=torch.int64)
            for i in range(samples):
                a, b = rng.uniform(0, self.side, size=2)
                r = rng.uniform(self.side / 8, self.side * 3 / 8)
                # (i - a)^2 + (j - b)^2 <= r^2
                inside = ((places - a) ** 2)[:, None] + ((places - b) ** 2)[None, :] <= r**2
                noise = rng.standard_normal(inside.shape, dtype=np.float32)
                inputs[i, 0] = torch.from_numpy(inside.astype(np.float32) + self.noise * noise)
                targets[i] = torch.from_numpy(inside)
            return Split(inputs, targets)

        return split(self.samples), split(max(self.samples // 4, 1))

    def how_to_get(self) -> str:
        return "They are made up as they are loaded."

    def found(self) -> str | None:
        return "made up from data.seed"
