"""The loss that a model computes itself of inputs and labels, as Hugging Face's models do.

forward(**inputs, labels=...) returns a dict or an object with `loss`, the mean over the labels that count, and
`logits`.

Replicas' losses are means over their own labels, m_j of them. The mean over all of them is sum_j m_j l_j / sum_j m_j:
where labels are left out (`ignore_index`), each loss is weighted by its share of them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...batches import Fields
from ...conf.errors import ConfigError
from ..base import DataSpec
from .base import Task
from .metrics import Accuracy, RSquared


class OwnLoss(Task):
    """The model's own loss of labels; reports accuracy."""

    targets = "labels"
    metric = Accuracy()

    def __init__(self, argument: str = "labels", ignore_index: int | None = None, shifts: bool = False) -> None:
        """`argument`: of the model's forward, which is given the targets. `ignore_index`: the label of targets that do
        not count. `shifts`: the model predicts each label from those before it, and none for the first.
        """
        self.argument, self.ignored, self.leaves_first = argument, ignore_index, shifts

    def function(self, spec: DataSpec) -> Callable[[Tensor, Any], Tensor]:
        return _weighed if spec.weights else self.loss

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`outputs`: the model's loss."""
        return outputs

    @property
    def weighs(self) -> bool:
        return False

    def aligned(self, logits: Tensor) -> Tensor:
        """Returns logits [n, ...] at the position of the label that each predicts."""
        return logits.roll(1, dims=1) if self.leaves_first else logits

    def check_logits(self, logits: Tensor, targets: Tensor) -> None:
        """Raises `ConfigError` for logits that are no scores of classes for each label."""
        if self.targets == "labels" and logits.shape[:-1] != targets.shape:
            raise ConfigError(
                f"task=model: the model's `logits` are {list(logits.shape)} for labels {list(targets.shape)}; must be "
                "the scores of all classes for each label, in the last dimension"
            )

    def accepts(self, outputs: Tensor, spec: DataSpec) -> bool:
        return outputs.dim() == 0


class OwnLossOfNumbers(OwnLoss):
    """The model's own loss of numbers; reports R^2."""

    targets = "numbers"
    metric = RSquared()

    def __init__(self, argument: str = "labels") -> None:
        super().__init__(argument)


def _weighed(outputs: Tensor, targets: Fields) -> Tensor:
    share = targets.tensors["weights"].mean()
    return torch.where(share > 0, outputs, 0.0) * share  # the mean of no labels at all is NaN
