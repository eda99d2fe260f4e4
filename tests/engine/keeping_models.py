"""Models with tensors that they keep beside themselves: [n, 1, 8, 8] -> [n, 10]."""

from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from paceline.tasks.base import DataSpec

_by_width: dict[int, Tensor] = {}


@lru_cache
def scale(width: int) -> Tensor:
    return torch.arange(width) / width + 1


@lru_cache
def words() -> list[str]:
    return ["not", "asked", "for"]


class Keeps(nn.Module):
    """`where`: "buffer" or "plain", an attribute of what lru_cache keeps; "both", which calls it in a pass as well;
    "class", an attribute of the class; "dict", of the module.
    """

    kept: ClassVar[Tensor | None] = None

    def __init__(self, spec: DataSpec, where: str) -> None:
        super().__init__()
        self.where, self.net = where, nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        if where == "buffer":
            self.register_buffer("scale", scale(10))
        elif where in ("plain", "both"):
            self.scale = scale(10)
        elif where == "class" and Keeps.kept is None:
            Keeps.kept = torch.ones(10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.net(x)
        if self.where == "both":
            return x * scale(10)
        if self.where == "class":
            assert Keeps.kept is not None
            return x * Keeps.kept
        if self.where == "dict":
            return x * _by_width.setdefault(10, x.new_ones(10))
        return x * self.scale
