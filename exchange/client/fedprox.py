"""Clients are held near the weights that they fetched: FedProx (Li et al. 2020, "Federated Optimization in
Heterogeneous Networks", MLSys, Algorithm 2; arXiv 1812.06127).

    h_k(y; w) = F_k(y) + mu/2 ||y - w||^2
    y <- y - eta (g_k(y) + mu (y - w))

w is what the client fetched in this round. mu = 0 is FedAvg, bit for bit.

Deviations from the paper: all clients take part alike, where the paper's may stop early at a solution that is only
good enough. Gradients are clipped before the proximal term is added (clip=norm). A parameter that has no gradient in
a step has no proximal term in it, either.

Cost: nothing is sent beside the weights. A client holds w, S bytes more.

Use it where clients train long on data that differ much, and go so far apart that their mean is of no use. mu is to be
searched for (the paper tries 0.001 to 1); one that is too large slows everybody down.
"""

from typing import Annotated

from annotated_types import Ge
from torch import Tensor
from torch.optim import SGD, Optimizer

from ..buckets import views_of
from .base import ClientRule


class FedProx(ClientRule):
    def __init__(self, mu: Annotated[float, Ge(0)] = 0.1) -> None:
        """`mu`: how strongly clients are drawn back to w."""
        self.mu = mu
        self._w: Tensor | None = None

    def begin(self) -> None:
        if self.mu > 0:
            self._w = self.weights.clone() if self._w is None else self._w.copy_(self.weights)

    def step(self, optimizer: Optimizer) -> None:
        if self._w is not None:
            for y, w in zip(self.parameters, views_of(self._w, self.parameters), strict=True):
                if y.grad is not None:
                    y.grad = y.grad.to_dense() if y.grad.is_sparse else y.grad
                    y.grad.add_(y.detach() - w, alpha=self.mu)
        optimizer.step()

    def may_help(self, optimizer: Optimizer) -> str:
        """The pull by itself, y - w <- (1 - eta mu)(y - w) with momentum, grows where eta mu is above the limit of SGD
        on a quadratic function: 2, with momentum rho 2 (1 + rho), with Nesterov's 2 (1 + rho) / (1 + 2 rho).
        """
        if self.mu == 0:
            return super().may_help(optimizer)
        group = optimizer.param_groups[0]
        rate, rho = float(group["lr"]), float(group.get("momentum", 0.0))
        most = 2 * (1 + rho) / (1 + 2 * rho if group.get("nesterov") else 1)
        if not isinstance(optimizer, SGD) or rate * self.mu <= most:
            return "a smaller optimizer.lr, or a smaller client.mu, may help"
        return (
            f"client.mu={self.mu:g} times the rate {rate:g} is {rate * self.mu:.4g}, and above {most:.4g} each step "
            f"back to the fetched weights goes further past them. Choose client.mu below {most / rate:.4g}, or a "
            "smaller optimizer.lr."
        )

    def holds(self, size: int) -> int:
        return size if self.mu > 0 else 0

    def buffers(self) -> list[Tensor]:
        return [] if self._w is None else [self._w]
