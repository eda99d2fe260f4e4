"""Orthogonal iteration, the power method for k vectors at once (Golub and Van Loan, "Matrix Computations", 4th edition,
section 8.2.4), from a gradient. It is called subspace or simultaneous iteration, too.

With the mean x' of a step's n samples and their covariance C = 1/n sum_x (x - x')(x - x')^T,

    W <- Q,  Q R = C W,        m <- x'

Samples are centred by the m at hand, which is the mean of the step before, and tasks/models/pca.py has the gradients
G = -2/n sum_x (x - m)(x - m)^T W and g = 2 (m - x'). So with s = x' - m = -g / 2

    C W = -G / 2 - s s^T W

and a step with all samples is that of their covariance from the first one on. The angle to the space of the k largest
eigenvalues of C shrinks by lambda_{k+1} / lambda_k a step; each column comes to the eigenvector of its place.

R has no negative entries on its diagonal, so that no column turns over from step to step.

Use it for model=pca, which takes no other.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .iteration import Iteration


class PowerIteration(Iteration):
    """The matrix is W [d, k], orthonormal columns; the vector is m [d]."""

    iteration = "power_iteration"

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {})

    def iterate(
        self, matrix: Tensor, vector: Tensor, of_matrix: Tensor, of_vector: Tensor, group: dict[str, Any]
    ) -> None:
        W, m = matrix, vector
        s = -of_vector / 2  # [d]
        Q, R = torch.linalg.qr(-of_matrix / 2 - torch.outer(s, s @ W))
        W.copy_(Q * torch.where(R.diagonal() < 0, -1.0, 1.0).to(Q.dtype))
        m.add_(s)
