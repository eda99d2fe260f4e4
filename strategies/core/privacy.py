"""Differential privacy (Dwork and Roth 2014, "The Algorithmic Foundations of Differential Privacy", definition 2.4): a
randomised training M is (epsilon, delta)-private if for neighbouring data D, D' and any set S of models

    P[M(D) in S] <= exp(epsilon) P[M(D') in S] + delta.

D' is D without one sample (`of` is sample), or without all the samples of one client. A way bounds what one of them can
change in a sum (clipping to C), and adds noise of that size to the sum (N(0, sigma^2 C^2) to each entry).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Lt

from ...conf.errors import ConfigError
from .terms import BATCH_GRADIENTS, NOT_PRIVATE, Compatible, Term, absent

Above0 = Annotated[float, Gt(0)]
Share = Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True)
class Budget:
    """The releases that a run spends: `steps` releases of a sum with noise, of `units` samples or clients. Each unit is
    in a release with probability `rate`. Units that are dealt are in at most `passes` releases; None: units are drawn,
    by `rate`.
    """

    units: int
    rate: float
    steps: int
    passes: int | None


class Privacy(Compatible):
    """`of`: who is protected; None: nobody. `bounds`: it clips, so that training is not the plain one.

    `clip`, `noise`: C and sigma. `delta`: None for 1 / n^1.1 of n samples or clients. `epsilon`: what a run may spend,
    by which the engine finds sigma; None where sigma is given.
    """

    of: Literal["sample", "client"] | None = None
    clip: float | None = None
    noise: float = 0.0
    epsilon: float | None = None
    delta: float | None = None

    @property
    def lacks(self) -> Mapping[Term, str]:
        return absent((NOT_PRIVATE, not self.bounds), (BATCH_GRADIENTS, not (self.bounds and self.of == "sample")))

    @property
    def bounds(self) -> bool:
        return self.clip is not None


def noise_of(noise: float | None, epsilon: float | None) -> float:
    """sigma, as it is given; 1 where it is not, until it is found by `epsilon`. Raises `ConfigError`."""
    if noise is not None and epsilon is not None:
        raise ConfigError(
            f"privacy.noise={noise:g}: privacy.epsilon={epsilon:g} finds the noise that spends no more; give one of "
            "the two, and leave the other null"
        )
    return 1.0 if noise is None else noise


def check_clipped(privacy: Privacy) -> None:
    """Raises `ConfigError`."""
    if privacy.clip is None and (privacy.noise > 0 or privacy.epsilon is not None):
        raise ConfigError(
            "privacy.clip=null: noise hides what one can change, which is without bounds where nothing is clipped. "
            "Choose privacy.clip=1, or privacy.noise=0 for plain training."
        )
