"""Minimum-diameter averaging (Rousseeuw 1985, "Multivariate Estimation with High Breakdown Point"; as a rule for
gradients: El Mhamdi et al. 2021, "Distributed Momentum for Byzantine-resilient Stochastic Gradient Descent", ICLR).

    S = the n - f rows whose largest distance between any two is smallest; the mean of S

All subsets are looked at: C(n, f) of them, so that it is for few rows. Of subsets of one
diameter that counts whose distances add up to least.

Cost: every row must be there; distances of all pairs, and C(n, f) subsets of (n - f)^2 of these.

Use it with few workers, where its bound of n > 2 f is worth the looking.
"""

import math
from functools import lru_cache
from itertools import combinations

import torch
from torch import Tensor

from ...conf.errors import ConfigError
from .base import Robust
from .distances import squared

SUBSETS, TOGETHER = 200_000, 4096  # that may be looked at, and at once


class MinimumDiameter(Robust):
    def check(self, rows: int) -> None:
        super().check(rows)
        n, f = self.before.rows(rows), self.withstands(rows)
        if (subsets := math.comb(n, f)) > SUBSETS:
            raise ConfigError(
                f"aggregate.f={f}: of n={n} rows it would look at {subsets:,} subsets, and {SUBSETS:,} are the most. "
                "Choose a smaller aggregate.f, or another aggregate, such as multi_krum."
            )

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        distances = squared(rows)
        sizes: list[Tensor] = []
        for some in subsets_of(len(rows), len(rows) - f).to(rows.device).split(TOGETHER):
            among = distances[some[:, :, None], some[:, None, :]].flatten(1)
            sizes.append(torch.stack([among.amax(1), among.sum(1)], dim=1))
        diameters, totals = torch.cat(sizes).T
        best = totals.where(diameters == diameters.min(), torch.inf).argmin()
        return rows[subsets_of(len(rows), len(rows) - f)[int(best)].to(rows.device)].mean(0)


@lru_cache(maxsize=4)
def subsets_of(n: int, k: int) -> Tensor:
    """[C(n, k), k]: which rows each has."""
    return torch.tensor(list(combinations(range(n), k)))
