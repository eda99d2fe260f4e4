"""The mean squared distance of samples to what stands for them: what k-means and PCA make as small as can be.

With D_j(x)^2 the squared distances that a model puts out (models/unsupervised.py), of which the nearest counts:

    l = 1/n sum_x min_j D_j(x)^2

For k-means n l is its inertia. Targets are not looked at: data may have any.
"""

import torch
from torch import Tensor

from ..base import DataSpec
from .base import Task
from .metrics import Metric


class ExplainedVariance(Metric):
    """The share of the variance that what stands for samples explains: R^2, with each sample as its own target,

    R^2 = 1 - sum_x min_j D_j(x)^2 / sum_x |x - m|^2,

    m the mean of the training samples as the model has it. 0 is what m by itself gives, in the place of every sample.
    """

    name = "r2"

    def tally(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Both sums, float64 [2]. outputs [n, 1 + m]."""
        assert weights is None, "weighted data were refused"
        return torch.stack([nearest(outputs), outputs[:, 0]]).double().sum(dim=1)

    def score(self, tally: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
        lost, spread = tally.tolist()
        return 1 - lost / spread if spread > 0 else float(lost <= 0)


class Reconstruction(Task):
    """A model puts out squared distances, that to the mean of training samples before the others."""

    targets = "none"
    metric = ExplainedVariance()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nearest(outputs).mean()

    def outputs(self, spec: DataSpec) -> tuple[int, ...]:
        return (2,)

    def accepts(self, outputs: Tensor, spec: DataSpec) -> bool:
        return outputs.dim() == 2 and outputs.shape[1] >= 2


def nearest(outputs: Tensor) -> Tensor:
    """[n, 1 + m] -> [n]: min_j D_j(x)^2; one of those that are as near gets the gradient."""
    return outputs[:, 1:].min(dim=1).values
