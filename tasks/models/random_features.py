"""Random Fourier features and a linear layer on them: close to a machine with the Gaussian kernel, without its matrix
(Rahimi and Recht 2007, "Random Features for Large-Scale Kernel Machines", NeurIPS, Algorithm 1).

With w_i ~ N(0, 2 gamma I) and b_i uniform in [0, 2 pi], D of each,

    z(x) = sqrt(2 / D) [cos(w_1 x + b_1), ..., cos(w_D x + b_D)],     E[z(x) z(y)] = exp(-gamma |x - y|^2).

With task=hinge and a weight decay, a linear model of z(x) approaches the support vector machine with that kernel.
"""

from collections import OrderedDict
from math import pi, prod, sqrt
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from ..base import DataSpec
from .checks import need_numbers


class FourierFeatures(nn.Module):
    """[n, d] -> z(x), [n, D]. What is drawn is saved with the model, and not trained."""

    w: Tensor  # [D, d]
    b: Tensor  # [D]

    def __init__(self, inputs: int, features: int, gamma: float, seed: int) -> None:
        super().__init__()
        self.register_buffer("w", torch.empty(features, inputs))
        self.register_buffer("b", torch.empty(features))
        if not self.w.is_meta:
            generator = torch.Generator("cpu").manual_seed(seed)
            self.w.copy_(torch.randn(features, inputs, generator=generator) * sqrt(2 * gamma))
            self.b.copy_(torch.rand(features, generator=generator) * 2 * pi)

    def forward(self, x: Tensor) -> Tensor:
        return sqrt(2 / len(self.b)) * torch.cos(nn.functional.linear(x, self.w, self.b))


class RandomFeatures(nn.Sequential):
    """[n, *input_shape] float -> [n, outputs]. Raises ConfigError for data that are not numbers."""

    def __init__(
        self,
        spec: DataSpec,
        features: Annotated[int, Ge(1)] = 1024,
        gamma: Annotated[float, Gt(0)] | None = None,
        seed: Annotated[int, Ge(0)] = 0,
    ) -> None:
        """`features`: D. `gamma`: of the kernel; None for 1 / d, d the entries of a sample, which suits data of
        variance 1. `seed`: of what is drawn, the same on all workers and whatever the run's seed.
        """
        need_numbers("random_features", spec)
        inputs = prod(spec.input_shape)
        drawn = FourierFeatures(inputs, features, 1 / inputs if gamma is None else gamma, seed)
        super().__init__(OrderedDict(flatten=nn.Flatten(), features=drawn, output=nn.Linear(features, spec.outputs)))
