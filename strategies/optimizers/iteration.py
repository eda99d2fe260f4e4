"""Base of the steps of k-means and PCA: each makes the next weights from a gradient that holds means over samples.

There is no learning rate. The step is right only for the mean over all samples of a step. Choices that send anything
else are refused before a run (engine/features/iterating.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Iteration(Optimizer, ABC):
    """An optimizer of a model with two parameters, a matrix and a vector (tasks/models/unsupervised.py).

    `iteration`: the name of its choice, which such a model declares too.
    """

    iteration: str
    whole_tensors = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Returns what `closure` does. Where a step has no gradient the weights stay."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            matrix, vector = group["params"]
            if matrix.grad is not None and vector.grad is not None:
                self.iterate(matrix, vector, matrix.grad, vector.grad, group)
        return loss

    @abstractmethod
    def iterate(
        self, matrix: Tensor, vector: Tensor, of_matrix: Tensor, of_vector: Tensor, group: dict[str, Any]
    ) -> None:
        """Change both in place. `of_matrix`, `of_vector`: their gradients, each of its parameter's shape."""
