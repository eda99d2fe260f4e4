"""Cross-entropy with weights w of classes, and with labels that do not count.

Training sees the mean over the targets that count, on any number of workers, as torch's CrossEntropyLoss has it:

    l = sum_i w_{y_i} (-log p_{y_i}) / sum_i w_{y_i}        over the i with y_i != ignore_index

`balanced` is w_c = n / (C n_c), of n targets of C classes, n_c of class c (scikit-learn's `class_weight`). Evaluation
leaves out what is ignored, and weighs all classes alike.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from ...conf.errors import ConfigError
from ..base import DataSpec, Readable
from .base import Weigher, alike
from .cross_entropy import CrossEntropy


class WeightedLabels(CrossEntropy):
    def __init__(
        self, weight: list[Annotated[float, Ge(0)]] | Literal["balanced"] | None = None, ignore_index: int | None = None
    ) -> None:
        """`weight`: of each class, in training. `ignore_index`: the label of targets that do not count."""
        super().__init__()
        self.weight, self.ignored = weight, ignore_index

    def weigher(self, train: Readable | None = None, classes: int = 0) -> Weigher | None:
        counting = super().weigher(train, classes)
        if self.weight is None:
            return counting
        counting = counting or alike
        if train is None:
            return counting
        listed = self._balanced(train.targets, classes) if self.weight == "balanced" else self.weight
        by_class = torch.as_tensor(listed, dtype=torch.float64)
        return lambda targets: by_class[self.without_ignored(targets)] * counting(targets)

    def _balanced(self, targets: Tensor | None, classes: int) -> Tensor:
        """`targets`: of all training samples, where they are known without reading these."""
        if targets is None:
            raise ConfigError(
                "task.weight=balanced: counts the targets of all samples, which these data read one by one. Give the "
                "Dataset an attribute `targets`, or task.weight a list."
            )
        counted = targets if self.ignored is None else targets[targets != self.ignored]
        counts = torch.bincount(counted.flatten(), minlength=classes).double()
        return torch.where(counts > 0, counts.sum() / (classes * counts.clamp(min=1)), 0.0)

    def function(self, spec: DataSpec) -> Callable[[Tensor, Any], Tensor]:
        """Raises `ConfigError`."""
        if isinstance(self.weight, list) and len(self.weight) != spec.classes:
            raise ConfigError(
                f"task.weight={self.weight}: has {len(self.weight)} weights, and the data have {spec.classes} classes. "
                "Choose one for each."
            )
        return super().function(spec)
