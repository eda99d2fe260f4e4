"""The hinge loss of several classes: with model=linear, a support vector machine.

Crammer and Singer 2001, "On the Algorithmic Implementation of Multiclass Kernel-based Vector Machines", JMLR 2,
equation 4:

    l(f, y) = max(0, 1 + max_{r != y} f_r - f_y)

as a mean over the predictions. Its regulariser beta / 2 |W|^2 is `optimizer.weight_decay` = beta. Deviates: torch's
optimizers decay every parameter, so the bias, which the paper has not, is regularised as well.
"""

import torch.nn.functional as F
from torch import Tensor

from .base import Task
from .metrics import Accuracy


class Hinge(Task):
    """Two or more outputs, the predicted class being the largest; a prediction a sample, or a token."""

    targets = "labels"
    metric = Accuracy()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.each(outputs, targets).mean()

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        f, y = outputs.flatten(0, -2), targets.flatten().unsqueeze(1)  # [n, classes], [n, 1]
        others = f.scatter(1, y, float("-inf"))  # all but the right one
        # max(0, 1 + max_{r != y} f_r - f_y)
        return F.relu(1 + others.amax(dim=1) - f.gather(1, y).squeeze(1)).view(targets.shape)
