"""Multinomial logistic regression on sparse samples, whose gradient is as sparse as they are."""

from collections import OrderedDict

from torch import Tensor, nn

from ...conf.errors import ConfigError
from ..base import DataSpec
from .checks import SPARSE, need_labels


class SparseLinear(nn.Module):
    """[n, 2, nonzeros] float64, features above their values -> [n, classes]: sum_i value_i W[feature_i].

    W [features, classes] starts at 0, so that a feature that was never seen says nothing.
    """

    def __init__(self, features: int, classes: int, sparse_gradients: bool) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(features, classes, mode="sum", sparse=sparse_gradients)
        nn.init.zeros_(self.rows.weight)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.rows.weight
        return self.rows(x[:, 0].long(), per_sample_weights=x[:, 1].to(weight.dtype))


class SparseLogisticRegression(nn.Sequential):
    """[n, 2, nonzeros] float64 -> [n, classes], without a bias, which every sample would write to.

    `sparse_gradients`: the gradient is a sparse tensor of the batch's features; else a dense one, for optimizers with
    momentum and for sync modes that send it. Raises ConfigError for data that are not sparse.
    """

    def __init__(self, spec: DataSpec, sparse_gradients: bool = True) -> None:
        if spec.features is None:
            raise ConfigError(f"model={SPARSE} takes sparse samples, as data=sparse and data=svmlight have them.")
        need_labels(SPARSE, spec)
        super().__init__(OrderedDict(output=SparseLinear(spec.features, spec.classes, sparse_gradients)))
