"""Lloyd's step of k-means (Lloyd 1982, "Least squares quantization in PCM"), from a gradient.

The mean over n samples of the squared distance to the nearest centre has, by a centre c with n_c of the samples, the
gradient g_c = 2/n (n_c c - sum_{x of c} x) and the second derivative 2 n_c / n. Lloyd's algorithm is Newton's (Bottou
and Bengio 1995, "Convergence Properties of the K-Means Algorithms"):

    c <- c - g_c / (2 v_c) = (sum_{x of c} x) / n_c,      v_c = n_c / n

With `running` v_c is summed up over steps, so that c is the mean of all samples that were its own in their step. That
is Sculley's mini-batch k-means (2010, "Web-Scale K-Means Clustering", Algorithm 1), whose rate is 1 over the count of a
centre's samples.

Deviations: a centre that has no samples stays where it is. With `running` samples count by their share of their step,
so those of a smaller one (an epoch's last) count more; Sculley's batches are all of one size.

Use it for model=kmeans, which takes no other.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .iteration import Iteration


class Lloyd(Iteration):
    """The matrix is the centres [k, d]; the vector is v [k], whose gradient is n_c / n."""

    iteration = "lloyd"

    def __init__(self, params: Iterable[nn.Parameter], running: bool = False) -> None:
        """`running`: for mini-batches."""
        super().__init__(params, {"running": running})

    def iterate(
        self, matrix: Tensor, vector: Tensor, of_matrix: Tensor, of_vector: Tensor, group: dict[str, Any]
    ) -> None:
        c, v, g = matrix, vector, of_matrix
        if group["running"]:
            v.add_(of_vector)
        else:
            v.copy_(of_vector)
        # c <- c - g_c / (2 v_c); without samples g_c is 0
        c.sub_(g / (2 * v.clamp(min=torch.finfo(v.dtype).tiny)).unsqueeze(1))
