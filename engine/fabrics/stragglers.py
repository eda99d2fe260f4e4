"""Workers of uneven speed: by which factor a worker's compute takes longer at a step.

A factor is a pure function of (seed, worker, step): the same trace for the same seed, whoever asks in whatever order.
On the virtual cluster it multiplies the modelled time. Real workers can only be slowed: there a factor below 1 counts
as 1. The bounds of knobs keep factors finite.

Use `one_slow` to see who waits for a straggler, `lognormal`, `exponential` and `pareto` for delays by chance, `phones`
for devices of several kinds, and `trace` for factors that were recorded.
"""

from abc import ABC, abstractmethod
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, MinLen

from ...conf.errors import ConfigError
from ...tracking.files import read_text

MOST = 1e9  # a larger factor is a mistake


class Stragglers(ABC):
    @abstractmethod
    def factor(self, worker: int, step: int) -> float:
        """> 0, for a worker's `step`; 1 is the hardware's own speed."""


class NoStragglers(Stragglers):
    def factor(self, worker: int, step: int) -> float:
        return 1.0


class OneSlow(Stragglers):
    def __init__(self, worker: Annotated[int, Ge(0)] = 1, factor: Annotated[float, Ge(1), Le(MOST)] = 4.0) -> None:
        self._worker, self._factor = worker, factor

    def factor(self, worker: int, step: int) -> float:
        return self._factor if worker == self._worker else 1.0


class UnevenDevices(Stragglers):
    """Devices of several kinds, each as fast in every step: worker r is of kind r modulo their number.

    Args:
        times: what a pass takes on each kind, in any unit. The factor of the quickest is 1.
    """

    def __init__(self, times: Annotated[list[Annotated[float, Ge(1 / MOST), Le(MOST)]], MinLen(1)]) -> None:
        self._factors = [time / min(times) for time in times]

    def factor(self, worker: int, step: int) -> float:
        return self._factors[worker % len(self._factors)]


class Exponential(Stragglers):
    """base + scale * Exp(1): of n workers, the k-th fastest takes base + scale * (H_n - H_{n-k}) on average."""

    def __init__(
        self, seed: int, base: Annotated[float, Ge(0), Le(MOST)] = 1.0, scale: Annotated[float, Gt(0), Le(MOST)] = 0.5
    ) -> None:
        self._seed, self._base, self._scale = seed, base, scale

    def factor(self, worker: int, step: int) -> float:
        return self._base + self._scale * float(_draw(self._seed, worker, step).standard_exponential())


class LogNormal(Stragglers):
    def __init__(self, seed: int, sigma: Annotated[float, Gt(0), Le(10)] = 0.5) -> None:
        self._seed, self._sigma = seed, sigma

    def factor(self, worker: int, step: int) -> float:
        return float(np.exp(self._sigma * _draw(self._seed, worker, step).standard_normal()))


class Pareto(Stragglers):
    def __init__(self, seed: int, alpha: Annotated[float, Ge(0.1)] = 2.5) -> None:
        self._seed, self._alpha = seed, alpha

    def factor(self, worker: int, step: int) -> float:
        return 1.0 + float(_draw(self._seed, worker, step).pareto(self._alpha))


class Trace(Stragglers):
    """Raises `ConfigError` when the file cannot be read or holds anything but positive numbers in equal rows."""

    def __init__(self, path: str) -> None:
        try:
            lines = [line for line in read_text(path).splitlines() if line.strip()]
            rows = [[float(number) for number in line.replace(",", " ").split()] for line in lines]
        except (OSError, ValueError) as error:
            raise ConfigError(f"stragglers.path={path}: {error}") from None
        if not rows or len({len(row) for row in rows}) > 1:
            raise ConfigError(f"stragglers.path={path}: must have lines, with as many numbers each")
        if not all(0 < number <= MOST for row in rows for number in row):
            raise ConfigError(f"stragglers.path={path}: factors must be numbers > 0, and {MOST:g} at most")
        self._rows = rows

    def factor(self, worker: int, step: int) -> float:
        row = self._rows[step % len(self._rows)]
        return row[worker % len(row)]


def _draw(seed: int, worker: int, step: int) -> np.random.Generator:
    return np.random.default_rng((seed, worker, step, 0x5354))
