"""The hinge loss: with model=linear, a support vector machine.

Of several classes there are two forms, each as a mean over the predictions. `multiclass` chooses one.

crammer_singer: Crammer and Singer 2001, "On the Algorithmic Implementation of Multiclass Kernel-based Vector Machines",
JMLR 2, equation 4, one problem for all classes:

    l(f, y) = max(0, 1 + max_{r != y} f_r - f_y)

one_vs_rest: for each class r the two-class machine of Cortes and Vapnik 1995, "Support-Vector Networks", Machine
Learning 20, which tells it from all others; their losses are added up:

    l(f, y) = sum_r max(0, 1 - s_r f_r),  s_r = 1 where r = y, else -1

No weight is in two of these problems, so that the minimum of the sum is the minimum of each. With two classes f_0 is
-f_1 at the minimum, and f_1 is the ordinary support vector machine.

The regulariser beta / 2 |W|^2 is `optimizer.weight_decay` = beta. torch's optimizers decay every parameter, so the
bias, which the papers do not regularise, is regularised as well; optimizer=sgd_free_biases leaves it out.
docs/convex.md says which C of scikit-learn's LinearSVC that is."""

from abc import abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Task
from .metrics import Accuracy


class MarginTask(Task):
    """Two or more outputs, the predicted class being the largest; a prediction a sample, or a token. The outputs are no
    logits: their softmax is no probability.
    """

    targets = "labels"
    metric = Accuracy()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.each(outputs, targets).mean()

    @abstractmethod
    def each(self, outputs: Tensor, targets: Tensor) -> Tensor: ...


class Hinge(MarginTask):
    def __init__(self, multiclass: Literal["crammer_singer", "one_vs_rest"] = "crammer_singer") -> None:
        self.multiclass = multiclass

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.multiclass == "one_vs_rest":
            return one_vs_rest(outputs, targets).sum(dim=-1)
        f, y = outputs.flatten(0, -2), targets.flatten().unsqueeze(1)  # [n, classes], [n, 1]
        others = f.scatter(1, y, float("-inf"))  # all but the right one
        # max(0, 1 + max_{r != y} f_r - f_y)
        return F.relu(1 + others.amax(dim=1) - f.gather(1, y).squeeze(1)).view(targets.shape)


def one_vs_rest(outputs: Tensor, targets: Tensor) -> Tensor:
    """[..., classes] and [...] int64 -> [..., classes]: by how much each margin is missed, max(0, 1 - s_r f_r)."""
    # s_r: 1 where r = y, else -1
    s = torch.full_like(outputs, -1.0).scatter(-1, targets.unsqueeze(-1), 1.0)
    return F.relu(1 - s * outputs)
