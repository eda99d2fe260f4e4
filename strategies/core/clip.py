"""Gradient clipping: a gradient that is too large is changed before a step is taken with it, or before it is pushed.

The sync mode's own file says which gradient that is. Where replicas step with the mean of their gradients, it is the
mean; where each steps, or pushes, on its own, it is its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...comm import Comm
from ...conf.errors import ConfigError
from .terms import UNCLIPPED, Compatible, Term, absent

NORM = 8  # bytes that each worker adds to a norm's sum: a float64


@dataclass(frozen=True)
class Counted:
    """The workers of a replica of several, and what each of them counts of what it holds.

    `names`: of this worker's parameters, those that no worker before it holds, whole or the same piece
    (placements.py). So each entry of the model's gradient is counted once.
    """

    among: Comm
    names: frozenset[str]


@dataclass(frozen=True)
class Shared:
    """The replicas that share a gradient out, so that each holds some entries of it; `copies` of them hold the same."""

    among: Comm
    copies: int = 1


class Clip(Compatible, ABC):
    """`clips`: it may change a gradient. `measures`: it takes the norm of the whole gradient, which those who hold it
    sum. `norm`: that of the last one, before it was clipped.
    """

    clips: bool = True
    measures: bool = False
    norm: float | None = None

    @property
    def lacks(self) -> Mapping[Term, str]:
        return absent((UNCLIPPED, not self.clips))

    @abstractmethod
    def apply(
        self, gradients: Mapping[str, Tensor], worker: int, counted: Counted | None = None, shared: Shared | None = None
    ) -> None:
        """Change these gradients in place: all that this worker has, by its parameters' names.

        `counted`: where the replica is several workers, which all call. `shared`: where replicas hold some entries
        each, and all call. Raises `ConfigError`, or `NotFiniteError`.
        """


def check_dense(gradients: Mapping[str, Tensor], choice: str) -> None:
    """Raises `ConfigError`."""
    if any(gradient.layout is not torch.strided for gradient in gradients.values()):
        raise ConfigError(
            f"clip={choice}: a gradient of this model is sparse, and only dense ones are clipped. Choose clip=none, or "
            "a model with dense gradients (model.sparse_gradients=false, nn.Embedding with sparse=False)."
        )
