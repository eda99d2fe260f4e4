"""Error feedback: corrections for the part of a vector that messages leave out.

*Error feedback* (Seide et al. 2014, "1-Bit Stochastic Gradient Descent", Interspeech; Stich et al. 2018, "Sparsified
SGD with Memory", NeurIPS, Algorithm 1; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD", ICML, Algorithm 2): it
is added to the next vector,

    p = b e + x,      C(p) is sent,      e <- p - C(p),

with b = 1; a decay b < 1 forgets what is old.
"""

import math
from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...conf.errors import ConfigError
from ...strategies.core.held import Held, HeldNumber


class Remembered(Protocol):
    """A slot, as feedback sees it; see base.py."""

    key: str
    memory: dict[str, Tensor]
    count: int
    workers: int


class Feedback(ABC):
    """`passes`: how often vectors are read or written, by `add` and `keep` together."""

    passes: float = 6.0  # p = e + x, e <- p - C(p)

    @abstractmethod
    def add(self, x: Tensor, slot: Remembered) -> Tensor:
        """Returns the vector to compress, [n], for the vector x that should be sent, [n]; `x` stays unchanged."""

    @abstractmethod
    def keep(self, p: Tensor, sent: Tensor, slot: Remembered) -> None:
        """Notes the error of a message. `p`: the vector from `add`. `sent`: the decoded message."""

    @abstractmethod
    def held(self, nbytes: int) -> int:
        """Bytes of memory for a vector of so many."""


class ErrorFeedback(Feedback):
    def __init__(self, decay: float = 1.0) -> None:
        """`decay`: b."""
        self.decay = decay

    def add(self, x: Tensor, slot: Remembered) -> Tensor:
        if (e := slot.memory.get("e")) is None:
            e = slot.memory["e"] = torch.zeros_like(x)
        if self.decay != 1:
            e *= self.decay
        return e.add_(x)  # p

    def keep(self, p: Tensor, sent: Tensor, slot: Remembered) -> None:
        p -= sent  # p is e

    def held(self, nbytes: int) -> int:
        return nbytes


class WatchedFeedback(Feedback):
    """Another feedback, of which the lengths of the newest vectors are noted for a picture."""

    def __init__(self, feedback: Feedback) -> None:
        self._feedback, self.passes = feedback, feedback.passes
        self._lengths: dict[str, tuple[float, float, float]] = {}  # by key: of p, C(p) and e

    def add(self, x: Tensor, slot: Remembered) -> Tensor:
        return self._feedback.add(x, slot)

    def keep(self, p: Tensor, sent: Tensor, slot: Remembered) -> None:
        lengths = float(p.norm()), float(sent.norm()), float((p - sent).norm())
        self._lengths[slot.key] = lengths
        self._feedback.keep(p, sent, slot)

    def held(self, nbytes: int) -> int:
        return self._feedback.held(nbytes)

    def shows(self) -> dict[str, Held]:
        of_each = zip(*self._lengths.values(), strict=True) if self._lengths else ((0.0,), (0.0,), (0.0,))
        lengths = (math.hypot(*each) for each in of_each)
        return {name: HeldNumber(each) for name, each in zip(("to send", "sent", "left out"), lengths, strict=True)}


def check_no_momentum(optimizer: Optimizer, why: str) -> None:
    """Refuse an optimizer that has momentum, where workers have it. Raises `ConfigError`."""
    if any(group.get("momentum") or "betas" in group for group in optimizer.param_groups):
        raise ConfigError(
            f"{why}, and {type(optimizer).__name__} would add its own. Choose optimizer=sgd and optimizer.momentum=0.",
            about=("compress",),
        )
