"""The loss that a model computes itself of inputs and labels, as Hugging Face's models do.

forward(**inputs, labels=...) returns a dict or an object with `loss`, the mean over the labels that count, and
`logits`.

Replicas' losses are means over their own labels, m_j of them. The mean over all of them is sum_j m_j l_j / sum_j m_j:
where labels are left out (`ignore_index`), each loss is weighted by its share of them.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...batches import Fields, Samples
from ...conf.errors import ConfigError
from ..base import DataSpec, Readable
from ..outputs import loss_and_logits
from .base import Task, Weigher, alike
from .metrics import Accuracy, RSquared


class OwnLoss(Task):
    """The model's own loss of labels; reports accuracy."""

    targets = "labels"
    metric = Accuracy()

    def __init__(self, argument: str = "labels", ignore_index: int | None = None, shifts: bool = False) -> None:
        """`argument`: of the model's forward, which is given the targets. `ignore_index`: the label of targets that do
        not count. `shifts`: the model predicts each label from those before it, and none for the first.
        """
        self.argument, self.ignored, self._shifts = argument, ignore_index, shifts

    def function(self, spec: DataSpec) -> Callable[[Tensor, Any], Tensor]:
        return _weighed if spec.weights else self.loss

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`outputs`: the model's loss."""
        return outputs

    @property
    def weighs(self) -> bool:
        return False

    def weigher(self, train: Readable | None = None, classes: int = 0) -> Weigher | None:
        weigh = super().weigher(train, classes)
        return functools.partial(_all_but_first, weigh or alike) if self._shifts else weigh

    def evaluated(self, model: nn.Module, inputs: Samples, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits [n, ...] at the positions of the labels that they predict, and the loss. Raises `ConfigError`
        for logits that are no scores of classes for each label.
        """
        loss, logits = loss_and_logits(model, inputs)
        if self.targets == "labels" and logits.shape[:-1] != targets.shape:
            raise ConfigError(
                f"task=model: the model's `logits` are {list(logits.shape)} for labels {list(targets.shape)}; must be "
                "the scores of all classes for each label, in the last dimension"
            )
        return logits.roll(1, dims=1) if self._shifts else logits, loss

    def accepts(self, outputs: Tensor, spec: DataSpec) -> bool:
        return outputs.dim() == 0


class OwnLossOfNumbers(OwnLoss):
    """The model's own loss of numbers; reports R^2."""

    targets = "numbers"
    metric = RSquared()

    def __init__(self, argument: str = "labels") -> None:
        super().__init__(argument)


def _all_but_first(weigh: Weigher, targets: Tensor) -> Tensor:
    weights = weigh(targets)
    weights[:, :1] = 0.0
    return weights


def _weighed(outputs: Tensor, targets: Fields) -> Tensor:
    share = targets.tensors["weights"].mean().to(outputs.dtype)
    return torch.where(share > 0, outputs, 0.0) * share  # the mean of no labels at all is NaN
