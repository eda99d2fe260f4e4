"""What k-means' step and PCA's have in common: each makes the next weights of a gradient that holds means over samples.

There is no rate. The step is right for the mean over all samples that a step has, and for nothing else that replicas
may send; what does not go with it is refused before a run (engine/features/iterating.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Iteration(Optimizer, ABC):
    """Of a model with two parameters, a matrix and a vector (tasks/models/unsupervised.py).

    `iteration`: its choice's name, which such a model says, too.
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
