"""The changes that an adversary may make: add a perturbation d with |d| <= eps, and stay within the data's range.

eps and steps are shares of the range, high - low: of pixels from 0 to 255, eps = 8/255 is 8 grey levels, however a data
set standardises its pixels. In L-inf |d| = max_j |d_j|; in L2 |d| = sqrt(sum_j d_j^2).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .noise import normal, uniform

NormName = Literal["linf", "l2"]


class Norm(ABC):
    """A norm of perturbations [n, ...], sample by sample."""

    name: ClassVar[NormName]

    @abstractmethod
    def of(self, d: Tensor) -> Tensor:
        """|d|, [n]."""

    @abstractmethod
    def direction(self, g: Tensor) -> Tensor:
        """argmax_{|d| <= 1} <d, g>: where a linear function of gradient g grows most. 0 where g is 0."""

    @abstractmethod
    def project(self, d: Tensor, radius: float) -> Tensor:
        """The perturbation with |.| <= radius that is nearest to d."""

    @abstractmethod
    def start(self, samples: Tensor, shape: Sequence[int], *told: object) -> Tensor:
        """Uniform in |d| <= 1, float32 [n, *shape]; see noise.py."""


class LInf(Norm):
    name = "linf"

    def of(self, d: Tensor) -> Tensor:
        return d.flatten(1).abs().amax(dim=1)

    def direction(self, g: Tensor) -> Tensor:
        return g.sign()

    def project(self, d: Tensor, radius: float) -> Tensor:
        return d.clamp(-radius, radius)

    def start(self, samples: Tensor, shape: Sequence[int], *told: object) -> Tensor:
        return 2 * uniform(samples, shape, *told) - 1


class L2(Norm):
    name = "l2"

    def of(self, d: Tensor) -> Tensor:
        return d.flatten(1).norm(dim=1)

    def direction(self, g: Tensor) -> Tensor:
        # the largest entry is divided by first: squares of small gradients would be 0
        largest = g.flatten(1).abs().amax(dim=1)
        scaled = g / _as(torch.where(largest > 0, largest, 1), g)
        length = self.of(scaled)
        return scaled / _as(torch.where(length > 0, length, 1), g)

    def project(self, d: Tensor, radius: float) -> Tensor:
        length = self.of(d)
        shorter = torch.where(length > radius, radius / length.clamp(min=torch.finfo(d.dtype).tiny), 1)
        return d * _as(shorter, d)

    def start(self, samples: Tensor, shape: Sequence[int], *told: object) -> Tensor:
        direction = self.direction(normal(samples, shape, *told))
        u = uniform(samples, (), *told, "distance").double()
        distance = u ** (1 / max(direction[:1].numel(), 1))  # the share within r of a ball is r^d
        return direction * _as(distance.float(), direction)


def _as(of_samples: Tensor, like: Tensor) -> Tensor:
    return of_samples.view(-1, *[1] * (like.dim() - 1))


NORMS: dict[NormName, Norm] = {"linf": LInf(), "l2": L2()}


@dataclass(frozen=True)
class Threat:
    """`low`, `high`: of the data, as a model is given them."""

    norm: Norm
    eps: float
    low: float
    high: float

    @property
    def radius(self) -> float:
        """eps in the units of what a model is given."""
        return self.eps * (self.high - self.low)

    def within(self, changed: Tensor, x: Tensor) -> Tensor:
        """`changed` brought back to |. - x| <= radius, and into the range, where x is."""
        d = self.norm.project(changed - x, self.radius)
        return (x + d).clamp(self.low, self.high)  # towards x in each entry, so that |d| does not grow
