"""A little is enough (Baruch, Baruch and Goldberg 2019, "A Little Is Enough: Circumventing Defenses For Distributed
Learning", NeurIPS, Algorithm 3; arXiv 1902.06156). Those who lie all send

    x~ = mu - z sigma                           mu, sigma: mean and standard deviation of each entry of honest rows
    z = Phi^-1((n - f - s) / (n - f))           s = floor(n / 2 + 1) - f

z is the largest for which s honest workers are expected to lie further out than the liars, who form a majority with
them: so the lie stays within the spread of the honest rows, in each entry, and always to the same side.

sigma divides by the number of honest rows, as the authors' code does.

Use it to see whether a rule holds where no single row looks wrong; with few liars z is small, and so is the harm.
"""

from collections.abc import Sequence
from statistics import NormalDist

from torch import Tensor

from ...conf.errors import ConfigError
from .base import Attack, Seen


def largest_z(n: int, f: int) -> float:
    """Returns the largest z for n replicas, f of them Byzantine.

    Returns 0 where no z is left: so few are Byzantine that no honest worker has to lie further out.
    """
    supporters = n // 2 + 1 - f
    share = (n - f - supporters) / (n - f)
    return max(NormalDist().inv_cdf(share), 0.0) if 0 < share < 1 else 0.0


class ALittleIsEnough(Attack):
    colludes = True

    def __init__(self, workers: int | Sequence[int] = 1, from_step: int = 0, z: float | None = None) -> None:
        """`z`: None for the paper's. Raises `ConfigError`."""
        super().__init__(workers, from_step)
        self.z = z

    def check(self, replicas: int) -> None:
        super().check(replicas)
        f = len(self.byzantine(replicas))
        if self.z is None and f and f > replicas // 2:
            raise ConfigError(
                f"attack.workers={self.workers}: {f} of {replicas} replicas are a majority, for which the paper has no "
                "z. Choose fewer, or give attack.z."
            )

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        assert seen.honest is not None
        z = largest_z(seen.replicas, seen.byzantine) if self.z is None else self.z
        return seen.honest.mean(0) - z * seen.honest.std(0, correction=0)
