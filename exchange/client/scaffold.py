"""Clients correct their steps by how their data differ from those of all: SCAFFOLD (Karimireddy et al. 2020, "SCAFFOLD:
Stochastic Controlled Averaging for Federated Learning", ICML, Algorithm 1, option II; arXiv 1910.06378).

    client:  y <- y - eta (g_k(y) - c_k + c)                  in each of its T_k steps of the round
             c_k+ = c_k - c + (w - y) / (T_k eta)             which is (1 / T_k) sum_t g_k(y_t)
             deliver y and c_k+ - c_k;  c_k <- c_k+
    server:  c <- c + sum_{k in S} p_k (c_k+ - c_k),          p_k = n_k / sum_j n_j over all clients

All c begin at 0, so that c = sum_k p_k c_k at any time. One client alone has c = c_k: it is FedAvg, bit for bit.

Deviations from the paper: c_k+ is computed as the mean of the gradients, which is the same for plain SGD and stands for
the same where an optimizer has momentum, or its rate a schedule. p_k is 1 / K there, all clients counting alike; here
clients count by their samples, as they do in the mean of weights, and with as many samples each it is the paper's.
Gradients are clipped before they are corrected (clip=norm). c is that of the start of the round, as in the paper.

With `compress` the change travels as a message too, and what is left out of it is in the next one. A client that leaves
a round keeps the c_k that it had; one that dies leaves its c_k in c.

Cost: one vector of S bytes more each way and round. A client holds c, c_k and a sum, 3 S bytes; the server c, the
changes of a round, and each c_k, so that a checkpoint can have them: K S bytes.

Use it where clients' data differ much, all of them come again and again, and a round is dear: it takes out what pulls
clients apart, where FedProx only holds them back. With few clients of many in a round their c_k grow old.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...strategies.core.state import State
from ..buckets import views_of
from .base import ClientRule, dense_gradient


class Scaffold(ClientRule):
    controls = True

    def __init__(self) -> None:
        self._own: Tensor | None = None  # on a client: [n], c_k
        self._sum: Tensor | None = None  # of the round's gradients
        self._steps = 0  # T_k
        self._kept: dict[int, Tensor] = {}  # on the server: c_k, by client

    def prepare(self, weights: Tensor, parameters: Sequence[nn.Parameter], shares: Sequence[float]) -> None:
        super().prepare(weights, parameters, shares)
        self._c = torch.zeros_like(weights)  # on a client, in a round, c - c_k

    # -- on a client

    def begin(self) -> None:
        if self._own is None or self._sum is None:
            self._own, self._sum = torch.zeros_like(self._c), torch.zeros_like(self._c)
        self._c.sub_(self._own)
        self._sum.zero_()
        self._steps = 0

    def step(self, optimizer: Optimizer) -> None:
        assert self._sum is not None, "the round has begun"
        for y, correction, total in zip(self.parameters, self._views(self._c), self._views(self._sum), strict=True):
            g = dense_gradient(y)
            total.add_(g)
            g.add_(correction)  # g - c_k + c
        optimizer.step()
        self._steps += 1

    def change(self) -> Tensor:
        assert self._own is not None and self._sum is not None, "the round has begun"
        if self._steps == 0:
            return torch.zeros_like(self._own)
        change = (self._sum / self._steps).sub_(self._own)
        self._own.add_(change)
        return change

    # -- on the server

    @property
    def c(self) -> Tensor:
        return self._c

    def take(self, changes: Mapping[int, Tensor], weights: Mapping[int, float]) -> None:
        for client in sorted(changes):
            self._c.add_(changes[client], alpha=self.shares[client])
            self._kept.setdefault(client, torch.zeros_like(self._c)).add_(changes[client])

    # -- state and cost

    def own_state(self, inside: bool) -> State:
        return {"correction": self._c, "sum": self._sum, "steps": self._steps} if inside else {}

    def load_own_state(self, state: State) -> None:
        if state:
            assert self._sum is not None, "the round has begun"
            self._c.copy_(state["correction"])
            self._sum.copy_(state["sum"])
            self._steps = state["steps"]

    def server_state(self) -> State:
        return {"c": self._c, "kept": self._kept}

    def load_server_state(self, state: State, client: int | None) -> None:
        kept = {k: tensor.to(self._c.device) for k, tensor in state["kept"].items()}
        if client is None:
            self._c.copy_(state["c"])
            self._kept = kept
        elif client in kept:
            self._own, self._sum = kept[client].clone(), torch.zeros_like(self._c)

    def holds(self, size: int) -> int:
        return 3 * size

    def server_holds(self, size: int, clients: int) -> int:
        """c, and each c_k once its client has delivered."""
        return (1 + clients) * size

    def buffers(self) -> list[Tensor]:
        return [self._c, *(each for each in (self._own, self._sum) if each is not None), *self._kept.values()]

    def _views(self, flat: Tensor) -> list[Tensor]:
        return views_of(flat, self.parameters)
