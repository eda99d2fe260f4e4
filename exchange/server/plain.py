"""The server adds the mean change of the clients, whole: w = sum_k (n_k / n) w_k (McMahan et al. 2017, Algorithm 1).

Cost: nothing beside the weights.

Use it first: it is what the others are compared with.
"""

from torch import Tensor

from .base import ServerRule


class PlainServer(ServerRule):
    plain = True

    def step(self, weights: Tensor, way: Tensor) -> None:
        weights.add_(way)
