"""Principal component analysis: the subspace of k dimensions, through the mean, that keeps most of the variance.

With m the mean of the n samples x, C = 1/n sum_x (x - m)(x - m)^T and W [d, k] of orthonormal columns, what is lost is

    l = 1/n sum_x |x - m|^2 - |W^T (x - m)|^2,      dl/dW = -2 C W

where |W^T (x - m)|^2 takes m as it is, so that dl/dm = 2 (m - 1/n sum_x x). From both follows the next step of
orthogonal iteration (Golub and Van Loan, "Matrix Computations", section 8.2.4): optimizer=power_iteration. W begins at
random.
"""

from math import prod
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn

from ...conf.errors import ConfigError
from ..base import DataSpec
from .checks import need_floats
from .unsupervised import Unsupervised


class PCA(Unsupervised):
    """`components` [d, k], d the numbers of a sample, orthonormal columns, and `mean` [d].

    Raises ConfigError for data that are not numbers, and for more components than a sample has numbers, or than
    there are training samples.
    """

    iteration = "power_iteration"

    def __init__(self, spec: DataSpec, k: Annotated[int, Ge(1)] = 10) -> None:
        need_floats("pca", spec)
        d = prod(spec.input_shape)
        if k > d:
            raise ConfigError(f"model.k={k}: a sample of these data has {d:,} numbers. Choose {d:,} or less.")
        if spec.train_size is not None and k > spec.train_size:
            raise ConfigError(
                f"model.k={k}: there are {spec.train_size:,} training samples, and no more directions in which they "
                f"differ. Choose {spec.train_size:,} or less."
            )
        super().__init__()
        self.components = nn.Parameter(torch.linalg.qr(torch.randn(d, k)).Q)
        self.mean = nn.Parameter(torch.zeros(d))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)  # [n, d]
        spread = (x - self.mean).square().sum(1)
        kept = ((x - self.mean.detach()) @ self.components).square().sum(1)
        return torch.stack([spread.detach(), spread - kept], dim=1)
