"""Adaptive federated optimization: FedAdagrad, FedAdam and FedYogi (Reddi et al. 2021, "Adaptive Federated
Optimization", ICLR, Algorithm 2; arXiv 2003.00295).

    m <- beta_1 m + (1 - beta_1) Delta
    v <- v + Delta^2                                          Adagrad
    v <- beta_2 v + (1 - beta_2) Delta^2                      Adam
    v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2)           Yogi
    w <- w + eta m / (sqrt(v) + tau)

m begins at 0 and v at tau^2, and nothing is corrected for that: the paper's rule, to which some libraries add Adam's
bias correction.

Cost: nothing is sent; the server holds m and v, twice the weights.

Use it where some weights move in few clients alone, as those of rare words do; lr and tau have to be searched for.
"""

from abc import abstractmethod
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from ...strategies.core.state import State
from .base import ServerRule

Beta = Annotated[float, Ge(0), Lt(1)]


class Adaptive(ServerRule):
    def __init__(
        self,
        lr: Annotated[float, Gt(0)] = 0.1,
        beta_1: Beta = 0.9,
        beta_2: Beta = 0.99,
        tau: Annotated[float, Gt(0)] = 1e-3,
    ) -> None:
        """`lr`: eta. `tau`: how adaptive it is: the smaller, the more."""
        self.lr, self.beta_1, self.beta_2, self.tau = lr, beta_1, beta_2, tau
        self._m: Tensor | None = None
        self._v: Tensor | None = None

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """[n], v and Delta^2 -> the new v."""

    def step(self, weights: Tensor, way: Tensor) -> None:
        m = torch.zeros_like(way) if self._m is None else self._m
        v = torch.full_like(way, self.tau**2) if self._v is None else self._v
        self._m = self.beta_1 * m + (1 - self.beta_1) * way
        self._v = self.second_moment(v, way.square())
        weights.addcdiv_(self._m, self._v.sqrt() + self.tau, value=self.lr)

    def holds(self, size: int) -> int:
        return 2 * size

    def state_dict(self) -> State:
        return {} if self._m is None or self._v is None else {"m": self._m, "v": self._v}

    def load_state_dict(self, state: State) -> None:
        self._m, self._v = state.get("m"), state.get("v")


class FedAdagrad(Adaptive):
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


class FedAdam(Adaptive):
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta_2 * v + (1 - self.beta_2) * square


class FedYogi(Adaptive):
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta_2) * square * (v - square).sign()
