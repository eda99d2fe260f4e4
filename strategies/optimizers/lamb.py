"""LAMB, layer-wise adaptive moments for batch training (You et al. 2020, "Large Batch Optimization for Deep Learning:
Training BERT in 76 minutes", Algorithm 2; arXiv 1904.00962).

For each tensor x of the weights, with its gradient g, the rate eta, weight decay lambda and its t-th step:

    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    x <- x - eta (||x|| / ||r + lambda x||) (r + lambda x)

A step is eta ||x|| long. phi, by which the paper may bound ||x||, is the identity.

Deviations: biases and the scales and shifts of norms (tensors of at most one dimension) have a ratio of 1 and
lambda = 0 with `exclude_vectors`, which makes their step Adam's. Where ||x|| or ||r + lambda x|| is zero, the ratio
is 1.

The ratio depends on a whole tensor: pieces of one cannot be stepped by themselves (exchange/elementwise.py).

Use it for large batches, mostly of transformers, where LARS does not do well.
"""

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...compat import foreach
from .trust import norms, or_one, scalars, stepped

Decay = Annotated[float, Ge(0), Lt(1)]


class LAMB(Optimizer):
    """LAMB, whose state is m and v, each as long as the weights, and t of each tensor."""

    whole_tensors = True

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: Annotated[float, Ge(0)] = 0.01,
        betas: tuple[Decay, Decay] = (0.9, 0.999),
        eps: Annotated[float, Gt(0)] = 1e-6,
        weight_decay: Annotated[float, Ge(0)] = 0.01,
        exclude_vectors: bool = True,
    ) -> None:
        """`lr`, `betas`, `weight_decay`: eta, beta1 and beta2, and lambda."""
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "exclude_vectors": exclude_vectors,
        }
        super().__init__(params, defaults)

    def step(self, closure: Any = None) -> Any:
        """Raises `ConfigError` where a gradient is sparse."""
        return stepped(self, "lamb", self._step, closure)

    def _step(self, group: dict[str, Any], x: list[Tensor], g: list[Tensor], adapts: bool) -> None:
        beta1, beta2 = group["betas"]
        states = [self._moments(tensor) for tensor in x]
        m, v = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        for state in states:
            state["step"] += 1
        t = [int(state["step"].item()) for state in states]
        foreach.lerp_(m, g, 1 - beta1)
        foreach.mul_(v, beta2)
        foreach.addcmul_(v, g, g, 1 - beta2)
        # sqrt(v / (1 - beta2^t)) + eps
        r = list(foreach.sqrt(v))
        foreach.div_(r, [(1 - beta2**steps) ** 0.5 for steps in t])
        foreach.add_(r, group["eps"])
        # r: (1 - beta1^t) times that, under m
        foreach.mul_(r, [1 - beta1**steps for steps in t])
        foreach.reciprocal_(r)
        foreach.mul_(r, m)
        eta = float(group["lr"])
        if not adapts:
            foreach.add_(x, r, alpha=-eta)
            return
        if group["weight_decay"]:
            foreach.add_(r, x, alpha=group["weight_decay"])
        # x <- x - eta (||x|| / ||r + lambda x||) (r + lambda x)
        ratio = or_one(*norms(x, r))
        foreach.addcmul_(x, r, scalars(-eta * ratio, x))

    def _moments(self, x: Tensor) -> dict[str, Tensor]:
        state = self.state[x]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(x), torch.zeros_like(x)
        return state
