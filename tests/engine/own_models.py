"""Models, losses and data that users write: what looks at values, changes its mind in mid-run, or holds NaN."""

import torch
from torch import Tensor, nn

from paceline.tasks.base import Data, DataSpec, Split


class Rows(Data):
    """Eight features, two classes. The test split's `unknown` rows hold a NaN."""

    def __init__(self, unknown: int = 0) -> None:
        self.unknown = unknown

    @property
    def spec(self) -> DataSpec:
        return DataSpec((8,), torch.float32, (), 2, train_size=64, test_size=32)

    def load(self) -> tuple[Split, Split]:
        inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
        targets = (inputs[:, 0] > 0).long()
        inputs[96 - self.unknown :, 1] = float("nan")
        return Split(inputs[:64], targets[:64]), Split(inputs[64:], targets[64:])


class InPlace(nn.Module):
    """[n, 8] -> [n, 2]; its forward changes its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.sub_(0.5))
