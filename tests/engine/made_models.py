"""Functions that make models, as torchvision and timm have them, and pictures of three channels."""

from math import prod
from typing import Any

import torch
from torch import nn

from paceline.tasks.base import Data, DataSpec, Split


def made(spec: DataSpec, width: int = 8, **more: Any) -> nn.Sequential:
    if more:
        raise TypeError(f"made() got an unexpected keyword argument {next(iter(more))!r}")
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(spec.input_shape), width), nn.ReLU(), nn.Linear(width, spec.classes)
    )


def unannotated(spec: DataSpec):
    return made(spec)


def a_number(spec: DataSpec) -> int:
    return 3


def downloads(url: str) -> None:
    raise AssertionError("was called")


class Pictures(Data):
    @property
    def spec(self) -> DataSpec:
        return DataSpec((3, 32, 32), torch.float32, (), 10, train_size=24, test_size=8)

    def load(self) -> tuple[Split, Split]:
        generator = torch.Generator().manual_seed(0)
        inputs, targets = torch.randn(32, 3, 32, 32, generator=generator), torch.arange(32) % 10
        return Split(inputs[:24], targets[:24]), Split(inputs[24:], targets[24:])
