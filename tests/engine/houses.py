"""A user's own data of several inputs and weights, a model for each kind of them, and a loss."""

from typing import Literal

import torch
from torch import Tensor, nn

from paceline.tasks.base import Data, DataSpec, Field, Split
from paceline.tasks.losses import Task
from paceline.tasks.losses.metrics import RSquared


class Houses(Data):
    """Made up: two prices of measurements [5] and of one of eight streets. The last batch of 90 is uneven."""

    def __init__(
        self, inputs: Literal["dict", "tuple", "one"] = "dict", weights: Literal["none", "samples", "mask"] = "none"
    ) -> None:
        self.inputs, self.weights = inputs, weights

    @property
    def spec(self) -> DataSpec:
        fields = {"measured": Field((5,)), "street": Field((), torch.int64)}
        several = {"dict": fields, "tuple": tuple(fields.values()), "one": None}[self.inputs]
        return DataSpec(
            input_shape=(5,),
            target_shape=(2,),
            target_dtype=torch.float32,
            train_size=90,
            test_size=30,
            inputs=several,
            weights=self.weights != "none",
        )

    def load(self) -> tuple[Split, Split]:
        drawn = torch.Generator().manual_seed(0)
        measured, street = torch.randn(120, 5, generator=drawn), torch.randint(8, (120,), generator=drawn)
        prices = measured @ torch.arange(10.0).view(5, 2) / 5 + torch.linspace(-2, 2, 8)[street].unsqueeze(1)
        weights = {
            "none": None,
            "samples": torch.rand(120, generator=drawn) * 3,
            "mask": torch.rand(120, 2, generator=drawn) < 0.6,
        }[self.weights]

        def part(rows: slice) -> Split:
            both = measured[rows], street[rows]
            kinds = {"dict": dict(zip(("measured", "street"), both, strict=True)), "tuple": both, "one": both[0]}
            return Split(kinds[self.inputs], prices[rows], None if weights is None else weights[rows])

        return part(slice(0, 90)), part(slice(90, None))


class OfStreets(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.streets = nn.Embedding(8, 4)
        self.layers = nn.Sequential(nn.Linear(9, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, measured: Tensor, street: Tensor) -> Tensor:
        return self.layers(torch.cat([measured, self.streets(street)], dim=1))


class Robust(Task):
    """Huber's loss, without a loss of each target."""

    targets = "numbers"
    metric = RSquared()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.huber_loss(outputs, targets)
