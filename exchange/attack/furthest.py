"""Min-max and min-sum (Shejwalkar and Houmansadr 2021, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks
and Defenses for Federated Learning", NDSS, section IV). Those who lie all send

    x~ = mu + gamma p       mu: the mean of honest rows; p: a direction away from it

with the largest gamma for which the lie is no further out than honest rows are:

    min-max:    max_i ||x~ - x_i|| <= max_ij ||x_i - x_j||
    min-sum:    sum_i ||x~ - x_i||^2 <= max_i sum_j ||x_i - x_j||^2

p is minus the standard deviation of each entry ("std", the paper's best), minus mu / ||mu|| ("unit"), or minus its
signs ("sign").

Deviation: the paper searches gamma by halving steps; both conditions are quadratic in gamma, and are solved here.

Use it against a rule whose bound you want to see: it goes as far as that rule's own measure allows.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..aggregate.distances import squared
from .base import Attack, Seen


class Furthest(Attack):
    colludes = True
    coordinatewise = False

    def __init__(
        self,
        workers: int | Sequence[int] = 1,
        from_step: int = 0,
        direction: Literal["std", "unit", "sign"] = "std",
    ) -> None:
        """`direction`: p. Raises `ConfigError`."""
        super().__init__(workers, from_step)
        self.direction = direction

    @abstractmethod
    def gamma(self, p: Tensor, apart: Tensor, distances: Tensor) -> float:
        """`p`: [d]. `apart`: [m, d], mu - x_i, both float64. `distances`: [m, m], squared."""

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        assert seen.honest is not None
        rows = seen.honest.double()
        mu = rows.mean(0)
        match self.direction:
            case "std":
                p = -rows.std(0, correction=0)
            case "unit":
                p = -mu / torch.linalg.vector_norm(mu).clamp(min=1e-300)
            case _:
                p = -mu.sign()
        if not bool(p.any()):  # the rows are all alike, and there is no room for a lie
            return mu.to(own.dtype)
        return (mu + self.gamma(p, mu - rows, squared(rows)) * p).to(own.dtype)


class MinMax(Furthest):
    def gamma(self, p: Tensor, apart: Tensor, distances: Tensor) -> float:
        # ||gamma p + apart_i||^2 = D: the larger root for each i, the smallest of these
        a, b = p @ p, apart @ p
        c = (apart * apart).sum(1) - distances.max()
        return float(((-b + (b * b - a * c).clamp(min=0).sqrt()) / a).min())


class MinSum(Furthest):
    def gamma(self, p: Tensor, apart: Tensor, distances: Tensor) -> float:
        # sum_i apart_i = 0, so that sum_i ||gamma p + apart_i||^2 = m gamma^2 ||p||^2 + sum_i ||apart_i||^2
        room = distances.sum(1).max() - (apart * apart).sum()
        return float((room.clamp(min=0) / (len(apart) * (p @ p))).sqrt())
