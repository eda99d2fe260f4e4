"""Cross-entropy of the softmax: multinomial logistic regression, and what networks classify by.

Bishop, "Pattern Recognition and Machine Learning", 2006, equation 4.108, as a mean over the predictions.

With `label_smoothing` epsilon training sees, of C classes, the target (1 - epsilon) of its class and epsilon / C of
each (Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", CVPR; arXiv 1512.00567, section
7):

    l = (1 - epsilon) (-log p_y) + epsilon / C sum_c (-log p_c).

Evaluation does without it, so that its loss is comparable.
"""

from collections.abc import Callable
from typing import Annotated, Any

import torch.nn.functional as F
from annotated_types import Ge, Lt
from torch import Tensor

from ..base import DataSpec
from .base import Task, mean_cross_entropy
from .metrics import Accuracy


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss, in nats. outputs [..., classes], targets [...] int64: a prediction a sample, or a token."""
    # mean of -log softmax(f)_y
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


class CrossEntropy(Task):
    targets = "labels"
    metric = Accuracy()

    def __init__(self, label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0) -> None:
        """`label_smoothing`: epsilon, in training."""
        self.label_smoothing = label_smoothing

    def function(self, spec: DataSpec) -> Callable[[Tensor, Any], Tensor]:
        if self.label_smoothing == 0:
            return super().function(spec)
        return _Smoothed(self.label_smoothing).function(spec)

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return losses.view(targets.shape)

    @mean_cross_entropy
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)


class _Smoothed(Task):
    """The loss with label smoothing. It is not the plain cross-entropy, and must not be computed as that."""

    targets = "labels"
    metric = Accuracy()

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        flat = outputs.flatten(0, -2), targets.flatten()
        return F.cross_entropy(*flat, reduction="none", label_smoothing=self._epsilon).view(targets.shape)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), label_smoothing=self._epsilon)
