"""Mimic (Karimireddy, He and Jaggi 2022, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", ICLR,
section 3.2; arXiv 2006.09365). Those who lie all send what one honest worker sends:

    x~ = x_i*

No row is out of range, and no rule can tell which of the equal rows is the true one; where data differ by worker, those
of i* count too much, and those that rules take for outliers are lost.

Deviation: i* is fixed, `copies`; the paper's attackers first learn which worker's rows lie furthest along the direction
in which honest rows differ most.

Use it where data differ by worker (`partition=dirichlet`); where they are alike it does no harm.
"""

from collections.abc import Sequence

from torch import Tensor

from ...conf.errors import ConfigError
from .base import Attack, Seen


class Mimic(Attack):
    colludes = True

    def __init__(self, workers: int | Sequence[int] = 1, from_step: int = 0, copies: int = 0) -> None:
        """`copies`: which of the honest replicas, counted from 0. Raises `ConfigError`."""
        super().__init__(workers, from_step)
        if copies < 0:
            raise ConfigError(f"attack.copies={copies}: must be at least 0, one of the honest replicas")
        self.copies = copies

    def check(self, replicas: int) -> None:
        super().check(replicas)
        if self.copies >= (honest := replicas - len(self.byzantine(replicas))):
            raise ConfigError(f"attack.copies={self.copies}: there are {honest} honest replicas, 0 to {honest - 1}")

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        assert seen.honest is not None
        return seen.honest[min(self.copies, len(seen.honest) - 1)].clone()  # some may have had no samples
