"""Data for timing alone: images of noise, any number of them, few of them for test."""

import torch

from paceline.tasks.base import Data, DataSpec, Split


class NoiseImages(Data):
    def __init__(self, side: int = 28, samples: int = 2048) -> None:
        self.side, self.samples = side, samples

    @property
    def spec(self) -> DataSpec:
        return DataSpec((1, self.side, self.side), torch.float32, (), 10, self.samples, 16)

    def load(self) -> tuple[Split, Split]:
        generator = torch.Generator().manual_seed(0)

        def split(samples: int) -> Split:
            images = torch.randn(samples, 1, self.side, self.side, generator=generator)
            return Split(images, torch.randint(10, (samples,), generator=generator))

        return split(self.samples), split(16)

    def how_to_get(self) -> str:
        return "It is made up as it is loaded."

    def found(self) -> str | None:
        return "made up"
