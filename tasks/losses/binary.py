"""Cross-entropy of yes or no: of one question a sample, or of k at once, of which any number may hold (multi-label).

Bishop, "Pattern Recognition and Machine Learning", 2006, equation 4.90, as a mean over samples and questions, of
logits f and of targets y in {0, 1}, or between them:

    l = -p y log s(f) - (1 - y) log(1 - s(f)),  s(f) = 1 / (1 + exp(-f))

with p = `positive_weight`: above 1 where yes is rare and to be found.

Use it with data of your own: columns of 0 and 1 of `data=table kind=numbers`, or such an array of `data=arrays`. The
data that are built in have classes or other numbers as targets, so a small run of them cannot be made.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Gt
from torch import Tensor

from ...conf.errors import ConfigError
from .base import Task
from .metrics import BinaryAccuracy


class BinaryCrossEntropy(Task):
    """Targets are numbers of the data (`target_dtype` torch.float32); a model puts out a logit for each."""

    targets = "numbers"
    metric = BinaryAccuracy()

    def __init__(self, positive_weight: Annotated[float, Gt(0)] = 1.0) -> None:
        self.positive_weight = positive_weight

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.each(outputs, targets).mean()

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        f = outputs.reshape(targets.shape)
        p = torch.full((), self.positive_weight, dtype=f.dtype, device=f.device)
        return F.binary_cross_entropy_with_logits(f, targets.to(f.dtype), reduction="none", pos_weight=p)

    def check_targets(self, what: str, targets: Tensor) -> None:
        low, high = (float(bound) for bound in targets.aminmax())
        if low < 0 or high > 1:
            way_out = "For a table choose data.standardize=false"
            raise ConfigError(
                f"{what} with targets from {low:g} to {high:g}; task=binary learns those from 0 to 1. {way_out}"
            )
