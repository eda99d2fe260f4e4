"""What an evaluation reports beside the loss, from sums over batches. Each has a column of its own in comparisons."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Metric(ABC):
    """`name`: in records, summaries and comparisons. Larger is better, and 1 is perfect."""

    name: str

    @abstractmethod
    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is summed over the samples of a test split, batch by batch."""

    @abstractmethod
    def score(self, tally: Tensor, targets: Tensor) -> float:
        """The metric, of the sum over all batches and all targets of the split. Both are on the CPU."""


class Accuracy(Metric):
    """The share of right predictions; a prediction is the class with the largest output."""

    name = "accuracy"

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The number of right predictions, int64 []. outputs [..., classes], targets [...] int64."""
        return (outputs.argmax(dim=-1) == targets).sum()

    def score(self, tally: Tensor, targets: Tensor) -> float:
        return int(tally) / targets.numel()


class RSquared(Metric):
    """The coefficient of determination, R^2 = 1 - sum (y - f)^2 / sum (y - mean y)^2, at most 1; 0 is what the targets'
    own mean gives. Of several outputs, their mean. Where all targets are the same, 1 if they are met and else 0.
    """

    name = "r2"

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of squared errors of each output, float64 [k]. outputs [n, k], targets [n, ...] of k numbers each."""
        return (outputs.double() - targets.reshape(outputs.shape).double()).square().sum(dim=0)

    def score(self, tally: Tensor, targets: Tensor) -> float:
        y = targets.reshape(len(targets), -1).double()  # [n, k]
        spread = (y - y.mean(dim=0)).square().sum(dim=0)
        perfect = (tally == 0).double()
        return float(torch.where(spread > 0, 1 - tally / spread, perfect).mean())
