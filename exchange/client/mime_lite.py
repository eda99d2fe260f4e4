"""Clients step with the server's momentum, which stays as it is in a round: MimeLite with SGD's momentum (Karimireddy
et al. 2020, "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning", the algorithm MimeLite; arXiv
2008.03606).

    client:  y <- y - eta ((1 - beta) g_k(y) + beta m)                in each of its steps of the round
             deliver y and g_k(w), the gradient of its first step, in which y = w
    server:  w <- sum_{k in S} p_k y_k
             m <- (1 - beta) sum_{k in S} p_k g_k(w) + beta m,        p_k = n_k / sum_{j in S} n_j

m begins at 0 and is sent with w. It is made of the gradients of all clients in S, those that deliver, so that it does
not follow one client's data, as the momentum of a client's own optimizer does. Where nobody delivers, m stays. Where
all clients take part, and a round is one step with all of a client's samples, this is central SGD with momentum beta
and dampening beta. beta = 0 is FedAvg, bit for bit.

Deviations from the paper: there m is made of the gradient of all of a client's data at w, for which clients go over
their data once more. Here it is made of the gradient of the round's first batch, which is an unbiased estimate of it,
and the same where a batch holds all of a client's samples. Gradients are clipped before m is added (clip=norm), so that
m is made of clipped ones. Weight decay is in neither g_k nor m: each step takes eta times the decay off the weights, as
AdamW does. Mime itself, in place of MimeLite, corrects g_k(y) by the gradient of the same batch at w, which is another
pass in each step; a rule is given the gradients of a step at y alone, so Mime is left out.

With `compress` the gradient travels as a message too, and what is left out of it is in the next one.

Cost: one vector of S bytes more each way and round. A client holds m and the first gradient, 2 S bytes; the server
holds m and the gradients of a round.

Use it where momentum helps, and clients are many and seldom come again: they keep nothing from one round to the next,
where SCAFFOLD's c_k grow old. It needs many rounds of few steps. m begins at 0, so that a step of the first round is
only 1 - beta times as long as FedAvg's; and the T steps of a round go T eta beta m along m, whatever their gradients
say, so that the rate is to be smaller the longer a round is.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ...conf.errors import ConfigError
from ...strategies.core.state import State
from ..buckets import views_of
from .base import ClientRule, dense_gradient


class MimeLite(ClientRule):
    controls = True

    def __init__(self, beta: Annotated[float, Ge(0), Lt(1)] = 0.9) -> None:
        """`beta`: how much of the momentum stays from round to round."""
        self.beta = beta
        self._first: Tensor | None = None  # on a client: [n], the gradient of the round's first step
        self._stepped = False  # in this round

    def prepare(self, weights: Tensor, parameters: Sequence[nn.Parameter], shares: Sequence[float]) -> None:
        super().prepare(weights, parameters, shares)
        self._m = torch.zeros_like(weights)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        if type(optimizer) is not SGD:
            raise ConfigError(
                f"the server's momentum takes the place of a client's own optimizer, and "
                f"{type(optimizer).__name__} would step with both. Choose optimizer=sgd optimizer.momentum=0, or "
                "client=plain, fedprox or scaffold.",
                about=("client",),
            )
        momentum = max(float(group["momentum"]) for group in optimizer.param_groups)
        if momentum > 0:
            raise ConfigError(
                f"clients step with the server's momentum, and optimizer.momentum={momentum:g} is a "
                "second one. Choose optimizer.momentum=0, or another client.",
                about=("client",),
            )

    # -- on a client

    def begin(self) -> None:
        self._first = torch.zeros_like(self._m) if self._first is None else self._first.zero_()
        self._stepped = False

    def step(self, optimizer: Optimizer) -> None:
        assert self._first is not None, "the round has begun"
        vectors = views_of(self._m, self.parameters), views_of(self._first, self.parameters)
        for y, m, first in zip(self.parameters, *vectors, strict=True):
            g = dense_gradient(y)
            if not self._stepped:
                first.copy_(g)
            g.mul_(1 - self.beta).add_(m, alpha=self.beta)  # (1 - beta) g_k(y) + beta m
        optimizer.step()
        self._stepped = True

    def change(self) -> Tensor:
        assert self._first is not None, "the round has begun"
        return self._first

    # -- on the server

    @property
    def c(self) -> Tensor:
        return self._m

    def take(self, changes: Mapping[int, Tensor], weights: Mapping[int, float]) -> None:
        self._m.mul_(self.beta)
        for client in sorted(changes):
            self._m.add_(changes[client], alpha=(1 - self.beta) * weights[client])

    # -- state and cost

    def own_state(self, inside: bool) -> State:
        return {"m": self._m, "first": self._first, "stepped": self._stepped} if inside else {}

    def load_own_state(self, state: State) -> None:
        if state:
            assert self._first is not None, "the round has begun"
            self._m.copy_(state["m"])
            self._first.copy_(state["first"])
            self._stepped = state["stepped"]

    def server_state(self) -> State:
        return {"m": self._m}

    def load_server_state(self, state: State, client: int | None) -> None:
        if client is None:  # others fetch it
            self._m.copy_(state["m"])

    def holds(self, size: int) -> int:
        return 2 * size

    def server_holds(self, size: int, clients: int) -> int:
        return size

    def buffers(self) -> list[Tensor]:
        return [self._m] if self._first is None else [self._m, self._first]
