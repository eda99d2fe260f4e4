"""Huber's loss: squared errors where they are small, absolute ones where they are large, so that outliers pull less.

Huber 1964, "Robust Estimation of a Location Parameter", Annals of Mathematical Statistics 35, as a mean over samples
and outputs:

    l(e) = e^2 / 2 where |e| <= d, else d (|e| - d / 2),  e = f - y,  d = `delta`
"""

from typing import Annotated

import torch.nn.functional as F
from annotated_types import Gt
from torch import Tensor

from .base import Task
from .metrics import RSquared


class Huber(Task):
    """The metric is R^2, as of squared errors."""

    targets = "numbers"
    metric = RSquared()

    def __init__(self, delta: Annotated[float, Gt(0)] = 1.0) -> None:
        self.delta = delta

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.each(outputs, targets).mean()

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.huber_loss(outputs.reshape(targets.shape), targets.to(outputs.dtype), "none", self.delta)
