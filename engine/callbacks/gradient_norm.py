"""The Euclidean norm of the gradient, each step: |g| = sqrt(sum_p |g_p|^2) over the parameters of this worker."""

from typing import Annotated

import torch
from annotated_types import Ge

from .base import Callback, Metrics, StepView


class GradientNorm(Callback):
    """Records the norm of the gradient. If a replica has several workers, it is the norm of the chief's part alone."""

    sees = frozenset({"gradients"})

    def __init__(self, every: Annotated[int, Ge(1)] = 1) -> None:
        """`every`: steps from one to the next that it is measured in."""
        self.every = every

    def each_step(self, view: StepView) -> Metrics:
        if view.step % self.every:
            return {}
        norms = torch.stack([gradient.float().norm() for gradient in view.gradients.values()])
        return {"gradient_norm": norms.norm()}
