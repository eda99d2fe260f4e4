"""The mean squared error: least-squares regression.

Bishop, "Pattern Recognition and Machine Learning", 2006, equation 3.12, without its 1/2 and as a mean over samples and
outputs:

    l = 1 / (n k) sum_i |f_i - y_i|^2,  f_i and y_i in R^k
"""

import torch.nn.functional as F
from torch import Tensor

from .base import Task
from .metrics import RSquared


class Squared(Task):
    """The metric is R^2 and no mean error: it has no unit, is larger where it is better, and 1 is perfect, as accuracy
    is, so that `target_accuracy` means something for all data.
    """

    targets = "numbers"
    metric = RSquared()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # reshaped, for [n, 1] and [n] would be broadcast to [n, n]
        return F.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype))

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs.reshape(targets.shape), targets.to(outputs.dtype), reduction="none")
