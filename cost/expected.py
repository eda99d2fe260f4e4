"""The slowest of n workers, on average: E[max(X_1, ..., X_n)] of independent factors by which computing takes longer.

    exponential, b + s Exp(1)    b + s H_n, H_n = 1 + 1/2 + ... + 1/n
    lognormal, Pareto            the integral of 1 - F(x)^n over x > 0 (David and Nagaraja 2003, section 3.1)

And the k-th fastest of n, E[X_(k)], where the n - k slowest are not waited for: b + s (H_n - H_{n-k}), or the integral
of P(X_(k) > x) = sum_{j<k} C(n, j) F(x)^j (1 - F(x))^{n-j} (the same, section 2.1).

Real workers can only be slowed: there a factor below 1 counts as 1 (`least`).
"""

from collections.abc import Callable, Mapping
from math import comb, erf, exp, inf, log, sqrt
from typing import Any

import numpy as np

from .rules import CostError


def expected_maximum(kind: str, knobs: Mapping[str, Any], workers: int, least: float = 0.0) -> float:
    """`kind` and `knobs`: as the choices of `stragglers`. Raises `CostError` for one that has none."""
    return expected_order(kind, knobs, workers, workers, least)


def expected_order(kind: str, knobs: Mapping[str, Any], workers: int, fastest: int, least: float = 0.0) -> float:
    """Returns the expected factor of the slowest of the `fastest` workers. Other arguments: as above."""
    match kind:
        case "none":
            return 1.0
        case "one_slow":
            return float(knobs["factor"]) if knobs["worker"] < workers and fastest == workers else 1.0
        case "exponential":
            base, scale = float(knobs["base"]), float(knobs["scale"])
            if least <= base:
                return base + scale * sum(1 / k for k in range(workers - fastest + 1, workers + 1))
            return _integral(lambda x: 1 - exp(-max(x - base, 0.0) / scale), workers, fastest, least)
        case "lognormal":
            sigma = float(knobs["sigma"])
            return _integral(lambda x: (1 + erf(log(x) / sigma / sqrt(2))) / 2, workers, fastest, least)
        case "pareto":
            alpha = float(knobs["alpha"])
            if alpha <= 1:
                raise CostError(
                    f"stragglers.alpha={alpha:g}: the mean of such factors is infinite; it is finite above 1"
                )
            return _integral(lambda x: 1 - x**-alpha if x > 1 else 0.0, workers, fastest, least)
        case _:
            raise CostError(f"stragglers={kind}: the distribution of its factors is not known")


def _integral(share_below: Callable[[float], float], workers: int, fastest: int, least: float) -> float:
    """least + the integral of P(X_(fastest) > x) from there on, by the trapezoidal rule in log x."""
    begin = max(least, 1e-9)
    points = np.linspace(log(begin), log(1e9), 20_001)
    x = np.exp(points)
    below = np.array([share_below(float(each)) for each in x])
    if fastest == workers:  # 1 - F^n, without losing the digits of F near 1
        above = -np.expm1(workers * np.log(np.maximum(below, np.finfo(float).tiny)))
    else:
        chances = [comb(workers, j) * below**j * (1 - below) ** (workers - j) for j in range(fastest)]
        above = np.sum(chances, axis=0)
    found = begin + float(np.trapezoid(above * x, points))
    assert found < inf
    return found
