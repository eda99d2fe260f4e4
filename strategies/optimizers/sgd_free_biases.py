"""SGD whose weight decay is of matrices and kernels alone: biases are free, as an intercept is in statistics.

Of an objective f(W, b) + beta / 2 |W|^2, as Hastie, Tibshirani and Friedman 2009, "The Elements of Statistical
Learning", section 3.4.1, write ridge regression: a penalty on the intercept would make the fit depend on where the
origin of the targets is. For each tensor with its gradient g, momentum m and rate eta it is torch's SGD:

    g <- g + beta W     where the tensor has two dimensions or more
    v <- m v + g
    W <- W - eta v      (with Nesterov momentum W - eta (g + m v))

It has two groups of parameters, for torch keeps weight decay by the group. With weight_decay=0 it is optimizer=sgd.

Use it where a fit is to be that of scikit-learn's Ridge or LogisticRegression, which leave the intercept out as well.
"""

from collections.abc import Iterable
from typing import Annotated

import torch
from annotated_types import Ge
from torch import nn


class SGDFreeBiases(torch.optim.SGD):
    """SGD with the state of torch's. Scales and shifts of norms have one dimension too, and are not decayed."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: Annotated[float, Ge(0)] = 0.02,
        momentum: Annotated[float, Ge(0)] = 0.9,
        weight_decay: Annotated[float, Ge(0)] = 0.0,
        nesterov: bool = False,
    ) -> None:
        """`lr`, `momentum`, `weight_decay`: eta, m and beta."""
        params = list(params)
        decayed = {"params": [each for each in params if each.dim() > 1], "weight_decay": weight_decay}
        free = {"params": [each for each in params if each.dim() <= 1], "weight_decay": 0.0}
        groups = [group for group in (decayed, free) if group["params"]]
        super().__init__(groups, lr=lr, momentum=momentum, nesterov=nesterov)
