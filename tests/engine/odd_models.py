"""Models that users write: tied weights, masks, frozen layers, two dtypes, none to train, wrong outputs, too large."""

import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from paceline.tasks.base import DataSpec


class Odd(nn.Sequential):
    """[n, 1, 8, 8] -> [n, 10], odd in the way that `kind` says."""

    def __init__(self, spec: DataSpec, kind: str) -> None:
        shared = nn.Linear(16, 16)
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 16), shared, nn.ReLU()]
        match kind:
            case "tied":
                layers.append(shared)
            case "mask":
                layers.append(Masked(register=True))
            case "attribute":
                layers.append(Masked(register=False))
            case "batch_norm":
                layers.append(nn.BatchNorm1d(16))
            case "group_norm":
                layers.append(nn.GroupNorm(2, 16))
            case "frozen":
                shared.requires_grad_(False)
            case "two_dtypes":
                layers.append(Scaled())
            case "misfit":
                layers.append(nn.Linear(15, 16))
            case "raises":
                layers.append(Raises())
            case "not_a_number":
                layers.append(Nan())
            case "huge":
                layers += [nn.Linear(16, 2**45), nn.Linear(2**45, 16)]
            case "leaves":
                sys.exit(0)
        super().__init__(*layers, nn.Linear(16, 7 if kind == "few_outputs" else spec.classes))
        if kind == "all_frozen":
            self.requires_grad_(False)
        self.kind = kind

    def forward(self, input: Tensor) -> Any:
        outputs = super().forward(input)
        return SimpleNamespace(scores=outputs) if self.kind == "object" else outputs


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise LookupError("nothing there")


class Nan(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float("nan")


class Masked(nn.Module):
    def __init__(self, register: bool) -> None:
        super().__init__()
        if register:
            self.register_buffer("mask", torch.ones(16), persistent=False)
        else:
            self.mask = torch.ones(16)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).float()
