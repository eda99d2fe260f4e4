"""How workers make a sum that all of them get: of messages, or by what the fabric has for it."""

from abc import ABC, abstractmethod

from torch import Tensor

from ....comm import Comm, Work
from ...base import Traffic, World


class Collective(ABC):
    """An algorithm. It keeps nothing from one sum to the next."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        """tensor <- its sum over the workers of `comm`, in place, alike on all bit for bit, once waited for.

        All workers begin their sums in the same order, and wait for them in the same order.
        """

    @abstractmethod
    def traffic(self, nbytes: float, world: World) -> Traffic:
        """Bytes that leave a worker, on average over the replicas, for the sum of a tensor of `nbytes`."""


def added(*traffics: Traffic) -> dict[str, float]:
    """Their sum, primitive by primitive."""
    return {
        primitive: sum(traffic.get(primitive, 0) for traffic in traffics)
        for primitive in dict.fromkeys(primitive for traffic in traffics for primitive in traffic)
    }


def times(factor: float, traffic: Traffic) -> dict[str, float]:
    return {primitive: factor * nbytes for primitive, nbytes in traffic.items()}
