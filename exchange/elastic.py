"""The springs of elastic averaging SGD (Zhang, Choromanska, LeCun 2015, "Deep Learning with Elastic Averaging SGD",
NeurIPS; arXiv 1412.6651).

They tie the replicas' weights W_i to a centre Wc, which is what is trained. Both sides move by the old values:

    W_i <- W_i - eta (g_i + rho (W_i - Wc))
    Wc  <- Wc  + eta sum_i rho (W_i - Wc)

What a spring takes from W_i it gives to Wc, so that without gradients sum_i W_i + Wc is conserved. The gradient step is
the optimizer's, eta its rate as it is at that step; then alpha (W_i - Wc) with alpha = eta rho, taken from the weights
before the step, is subtracted. (Taken from the weights after it, it would be another rule.) rho = null makes alpha
0.9 / P for P replicas, the paper's choice, so that a round of all of them moves Wc 0.9 of the way to their mean.

*Momentum*: `nesterov` is the paper's EAMSGD (Algorithm 2), with the optimizer's momentum as its delta:

    v_i <- delta v_i - eta g_i(x_i + delta v_i)
    x_i <- x_i + v_i - alpha (x_i - Wc)

torch's SGD with Nesterov momentum holds W_i = x_i + delta v_i and b = -v_i / eta, so that x_i = W_i + eta delta b is
what the spring is tied to. Without `nesterov` a momentum is the optimizer's own affair, and the spring is tied to W_i.

Deviation: the exchange is in steps t with period | t + 1, where the paper's is in those with period | t, the first of
which would exchange what is alike.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..conf.errors import ConfigError
from .buckets import views_of
from .flat import flatten

BETA = 0.9  # P alpha where rho is not given


class Replica:
    """W_i, and the spring that ties it to a centre."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], optimizer: Optimizer, rho: float | None, nesterov: bool, replicas: int
    ) -> None:
        self.weights = flatten(parameters)  # W_i
        self.pull = torch.zeros_like(self.weights)  # alpha (x_i - Wc)
        self._parameters, self._optimizer = parameters, optimizer
        self._rho, self._nesterov, self._replicas = rho, nesterov, replicas
        check_elastic(optimizer, rho, nesterov)
        if nesterov:
            for group in optimizer.param_groups:
                group["nesterov"] = True

    @property
    def alpha(self) -> float:
        if self._rho is None:
            return BETA / self._replicas
        [group] = self._optimizer.param_groups
        return float(group["lr"]) * self._rho

    def position(self) -> Tensor:
        """[n]: x_i, W_i itself without Nesterov momentum."""
        if not self._nesterov:
            return self.weights
        groups = {parameter: group for group in self._optimizer.param_groups for parameter in group["params"]}
        x = self.weights.clone()
        for view, parameter in zip(views_of(x, self._parameters), self._parameters, strict=True):
            b = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if b is not None:
                group = groups[parameter]
                view.add_(b, alpha=float(group["lr"]) * group["momentum"])
        return x

    def elastic_force(self, x: Tensor, centre: Tensor) -> None:
        """pull = alpha (x - Wc)"""
        torch.sub(x, centre, out=self.pull).mul_(self.alpha)

    def step(self) -> None:
        """The optimizer's step, and the pull that was taken before it."""
        self._optimizer.step()
        self.weights.sub_(self.pull)


def check_elastic(optimizer: Optimizer, rho: float | None, nesterov: bool) -> None:
    """Raises `ConfigError` where the optimizer has not the rate, or the momentum, that springs go by."""
    if nesterov:
        for group in optimizer.param_groups:
            _check_nesterov(optimizer, group)
    if rho is not None and any("lr" not in group for group in optimizer.param_groups):
        raise ConfigError(
            f"sync.rho={rho:g}: a spring pulls by rho times the optimizer's rate lr, and {type(optimizer).__name__} "
            "has none. Choose sync.rho=null, or optimizer=adam, adamw or sgd."
        )
    if rho is not None and len(optimizer.param_groups) > 1:
        raise ConfigError(
            f"sync.rho={rho:g}: a spring pulls by rho times the optimizer's rate, and {type(optimizer).__name__} has "
            "several. Choose sync.rho=null, or optimizer=adam, adamw or sgd."
        )


def _check_nesterov(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Checks that the optimizer's group has Nesterov momentum available. Raises `ConfigError`."""
    if "nesterov" not in group or group.get("momentum", 0) == 0 or group.get("dampening", 0) != 0:
        raise ConfigError(
            f"sync.nesterov=true: {type(optimizer).__name__} has no momentum that could be Nesterov's. Choose "
            "optimizer=sgd with optimizer.momentum=0.9, or sync.nesterov=false."
        )
