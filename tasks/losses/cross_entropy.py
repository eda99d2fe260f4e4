"""Cross-entropy of the softmax: multinomial logistic regression, and what networks classify by.

Bishop, "Pattern Recognition and Machine Learning", 2006, equation 4.108, as a mean over the predictions.

With `label_smoothing` epsilon training sees, of C classes, the target (1 - epsilon) of its class and epsilon / C of
each (Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", CVPR; arXiv 1512.00567, section
7):

    l = (1 - epsilon) (-log p_y) + epsilon / C sum_c (-log p_c).

Evaluation does without it, so that its loss is comparable.

With `weight` w and `ignore_index` training sees the mean over the targets that count, on any number of workers:

    l = sum_i w_{y_i} (-log p_{y_i}) / sum_i w_{y_i}        over the i with y_i != ignore_index

`balanced` is w_c = n / (C n_c), of n targets of C classes, n_c of class c (scikit-learn's `class_weight`). Evaluation
leaves out what is ignored, and weighs all classes alike.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Lt
from torch import Tensor

from ...conf.errors import ConfigError
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

    def __init__(
        self,
        label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0,
        weight: list[Annotated[float, Ge(0)]] | Literal["balanced"] | None = None,
        ignore_index: int | None = None,
    ) -> None:
        """Raises `ConfigError`.

        Args:
            label_smoothing: epsilon, in training.
            weight: of each class, in training.
            ignore_index: the label of targets that do not count.
        """
        if weight is not None and label_smoothing > 0:
            raise ConfigError(
                f"task.label_smoothing={label_smoothing}: gives each target several classes, and task.weight weighs "
                "targets of one. Choose one of them."
            )
        self.label_smoothing, self.weight, self.ignored = label_smoothing, weight, ignore_index
        self.weighs_classes = weight is not None

    def class_weights(self, targets: Tensor | None, classes: int) -> Tensor | None:
        if self.weight != "balanced":
            return None if self.weight is None else torch.tensor(self.weight)
        if targets is None:
            raise ConfigError(
                "task.weight=balanced: counts the targets of all samples, which these data read one by one. Give the "
                "Dataset an attribute `targets`, or task.weight a list."
            )
        counted = targets if self.ignored is None else targets[targets != self.ignored]
        counts = torch.bincount(counted.flatten(), minlength=classes)
        return torch.where(counts > 0, counts.sum() / (classes * counts.clamp(min=1)), 0.0).float()

    def function(self, spec: DataSpec) -> Callable[[Tensor, Any], Tensor]:
        if isinstance(self.weight, list) and len(self.weight) != spec.classes:
            raise ConfigError(
                f"task.weight={self.weight}: has {len(self.weight)} weights, and the data have {spec.classes} classes. "
                "Choose one for each."
            )
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
