"""LARS, layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017, "Large Batch Training of Convolutional Networks",
Algorithm 1; arXiv 1708.03888).

For each tensor w of the weights, with its gradient g, the global rate gamma, the trust coefficient eta, momentum m and
weight decay beta:

    lambda = eta ||w|| / (||g|| + beta ||w||)      equation 6
    v <- m v + gamma lambda (g + beta w)
    w <- w - v

With beta = 0 and no momentum a step is gamma eta ||w|| long, whatever the scale of the loss. The rate is within v, so
that a change of gamma does not change what earlier gradients still contribute.

Deviations: biases and the scales and shifts of norms (tensors of at most one dimension) have lambda = 1 and beta = 0
with `exclude_vectors`, as implementations since have it; the paper scales every layer. The paper does not say what
lambda is where ||w||, or the denominator, is zero: here it is 1.

lambda depends on a whole tensor: pieces of one cannot be stepped by themselves (exchange/elementwise.py).

Use it for large batches, mostly of convolutional networks, where one rate for all layers is too large for some of them
and too small for others.
"""

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...compat import foreach
from .trust import norms, or_one, scalars, stepped


class LARS(Optimizer):
    """LARS, whose state is v, as long as the weights; without momentum there is none."""

    whole_tensors = True

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: Annotated[float, Ge(0)] = 1.0,
        momentum: Annotated[float, Ge(0), Lt(1)] = 0.9,
        weight_decay: Annotated[float, Ge(0)] = 0.0005,
        trust_coefficient: Annotated[float, Gt(0)] = 0.001,
        exclude_vectors: bool = True,
    ) -> None:
        """`lr`, `momentum`, `weight_decay`, `trust_coefficient`: gamma, m, beta and eta."""
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "exclude_vectors": exclude_vectors,
        }
        super().__init__(params, defaults)

    def step(self, closure: Any = None) -> Any:
        """Raises `ConfigError` where a gradient is sparse."""
        return stepped(self, "lars", self._step, closure)

    def _step(self, group: dict[str, Any], w: list[Tensor], g: list[Tensor], adapts: bool) -> None:
        gamma, m, beta = float(group["lr"]), group["momentum"], group["weight_decay"] if adapts else 0.0
        if adapts:
            w_norm, g_norm = norms(w, g)
            rate = gamma * or_one(group["trust_coefficient"] * w_norm, g_norm + beta * w_norm)  # gamma lambda
        else:
            rate = torch.full((len(w),), gamma, dtype=torch.float64, device=w[0].device)
        # v <- m v + gamma lambda (g + beta w)
        if m:
            v = [self._velocity(x) for x in w]
            foreach.mul_(v, m)
            foreach.addcmul_(v, g, scalars(rate, w))
        else:
            v = list(foreach.mul(g, scalars(rate, w)))
        if beta:
            foreach.addcmul_(v, w, scalars(rate * beta, w))
        foreach.sub_(w, v)

    def _velocity(self, w: Tensor) -> Tensor:
        state = self.state[w]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(w)
        return state["momentum_buffer"]
