"""The metrics that an evaluation reports beside the loss, from sums over batches. Each is a column of comparisons.

Of weighted data each target counts by its weight, of the shape of targets: a mask's 0 leaves it out.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

ROUNDING = 1e-6  # of a perfect metric, from sums of weights


class Metric(ABC):
    """`name`: in records, summaries and comparisons. Larger is better, and 1 is perfect.

    `larger_is_better`: False for an error or a perplexity. Such a metric is recorded, and reaches no `target_accuracy`.
    """

    name: str
    larger_is_better: bool = True

    def reaches(self, value: float, target: float) -> bool:
        """Returns whether `value` is at least `target`; False for a value above 1, which is no share and no R^2."""
        return self.larger_is_better and target <= value <= 1 + ROUNDING

    @abstractmethod
    def tally(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Returns the values that are summed over the samples of a test split, batch by batch."""

    @abstractmethod
    def score(self, tally: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
        """The metric, of the sum over all batches and all targets of the split. All are on the CPU."""


class Accuracy(Metric):
    """The share of right predictions; a prediction is the class with the largest output."""

    name = "accuracy"

    def tally(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """The right predictions, int64 [] or of weights float64 []. outputs [..., classes], targets [...] int64."""
        return counted(outputs.argmax(dim=-1) == targets, weights)

    def score(self, tally: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
        return tally.item() / total_of(targets, weights)


class BinaryAccuracy(Metric):
    """The share of right answers, yes where the logit is above 0; of several questions, of all of them."""

    name = "accuracy"

    def tally(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """outputs [n, k], targets [n, ...] of k numbers each, yes where above 1/2."""
        return counted((outputs.reshape(targets.shape) > 0) == (targets > 0.5), weights)

    def score(self, tally: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
        return tally.item() / total_of(targets, weights)


class RSquared(Metric):
    """The coefficient of determination, R^2 = 1 - sum (y - f)^2 / sum (y - mean y)^2, at most 1; 0 is what the targets'
    own mean gives. Of several outputs, their mean. Where all targets are the same, 1 if they are met and else 0.
    """

    name = "r2"

    def tally(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """The sum of squared errors of each output, float64 [k]. outputs [n, k], targets [n, ...] of k numbers each."""
        squares = (outputs.double() - targets.reshape(outputs.shape).double()).square()
        if weights is not None:
            squares = squares * weights.reshape(outputs.shape).double()
        return squares.sum(dim=0)

    def score(self, tally: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
        y = targets.reshape(len(targets), -1).double()  # [n, k]
        if weights is None:
            spread, known = (y - y.mean(dim=0)).square().sum(dim=0), ...
        else:
            w = weights.reshape(y.shape).double()
            known = w.sum(dim=0) > 0  # an output whose targets are all left out says nothing
            mean = (w * y).sum(dim=0) / w.sum(dim=0).clamp(min=torch.finfo(w.dtype).tiny)
            spread = (w * (y - mean).square()).sum(dim=0)
        perfect = (tally == 0).double()
        return float(torch.where(spread > 0, 1 - tally / spread, perfect)[known].mean())


def counted(holds: Tensor, weights: Tensor | None) -> Tensor:
    """Returns the number of targets for which it holds, each by its weight."""
    return holds.sum() if weights is None else (holds * weights.double()).sum()


def total_of(targets: Tensor, weights: Tensor | None) -> float:
    """Returns the number of targets, each by its weight."""
    return targets.numel() if weights is None else weights.double().sum().item()
