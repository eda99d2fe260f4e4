"""Cross-entropy of the softmax: multinomial logistic regression, and what networks classify by.

Bishop, "Pattern Recognition and Machine Learning", 2006, equation 4.108, as a mean over the predictions.
"""

import torch.nn.functional as F
from torch import Tensor

from .base import Task, mean_cross_entropy
from .metrics import Accuracy


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss, in nats. outputs [..., classes], targets [...] int64: a prediction a sample, or a token."""
    # mean of -log softmax(f)_y
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


class CrossEntropy(Task):
    targets = "labels"
    metric = Accuracy()

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return losses.view(targets.shape)

    @mean_cross_entropy
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)
