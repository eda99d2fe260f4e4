"""The loss that is minimised, as strategies are given it."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

Loss = Callable[[Tensor, Any], Tensor]  # (outputs, targets: Samples) -> mean over the samples


def is_mean_cross_entropy(loss: Loss) -> bool:
    """Returns whether the loss declares itself the mean over all predictions of the cross-entropy of the softmax of
    logits [..., classes]. A strategy may then compute it in another way (`tasks.losses.CrossEntropy` declares it).
    """
    return bool(getattr(loss, "is_mean_cross_entropy", False))
