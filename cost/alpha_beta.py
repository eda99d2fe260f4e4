"""A link's latency and bandwidth from times of messages: seconds = alpha + bytes beta (Hockney 1994)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .rules import CostError


@dataclass(frozen=True)
class AlphaBeta:
    alpha: float  # seconds
    beta: float  # seconds a byte
    residual: float  # the median of |predicted / measured - 1| over the points that it was fitted on

    def seconds(self, nbytes: float) -> float:
        return self.alpha + nbytes * self.beta


def fit(points: Sequence[tuple[float, float]]) -> AlphaBeta:
    """Least squares of relative residuals over (bytes, seconds); neither term is below 0. Raises `CostError`."""
    if len({nbytes for nbytes, _ in points}) < 2 or not all(seconds > 0 for _, seconds in points):
        raise CostError("alpha and beta: need times, above 0, of messages of at least two sizes")
    nbytes, seconds = np.array(points, dtype=float).T
    rows = np.stack([1 / seconds, nbytes / seconds], axis=1)
    alpha, beta = np.linalg.lstsq(rows, np.ones(len(points)), rcond=None)[0]
    if alpha < 0:  # the best without it
        alpha, beta = 0.0, _alone(rows[:, 1])
    elif beta < 0:
        alpha, beta = _alone(rows[:, 0]), 0.0
    residual = float(np.median(np.abs(rows @ np.array([alpha, beta]) - 1)))
    return AlphaBeta(float(alpha), float(beta), residual)


def _alone(column: np.ndarray) -> float:
    """The factor that brings it closest to 1."""
    return float(column.sum() / (column @ column))
