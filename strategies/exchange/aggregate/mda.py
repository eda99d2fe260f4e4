"""Minimum-diameter averaging (Rousseeuw 1985, "Multivariate Estimation with High Breakdown Point"; as a rule for
gradients: El Mhamdi et al. 2021, "Distributed Momentum for Byzantine-resilient Stochastic Gradient Descent", ICLR).

    S = the n - f rows whose largest distance between any two is smallest; the mean of S

All subsets are looked at: C(n, f) of them, so that it is for few rows. Of subsets of one
diameter that counts whose distances add up to least.
"""

import math
from itertools import combinations

import torch
from torch import Tensor

from ...errors import LayoutError
from .base import Robust
from .distances import squared

SUBSETS = 200_000  # that may be looked at: about a second


class MinimumDiameter(Robust):
    bound = "n > 2 f"

    def most(self, rows: int) -> int:
        return (rows - 1) // 2

    def check(self, rows: int) -> None:
        super().check(rows)
        n, f = self.before.rows(rows), self.withstands(rows)
        if (subsets := math.comb(n, f)) > SUBSETS:
            raise LayoutError(
                f"aggregate.f={f}: of n={n} rows it would look at {subsets:,} subsets, and {SUBSETS:,} are the most; "
                "choose a smaller aggregate.f, or another aggregate, such as multi_krum"
            )

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        n = len(rows)
        subsets = torch.tensor(list(combinations(range(n), n - f)), device=rows.device)  # [subsets, n - f]
        distances = squared(rows)
        among = [distances[subset][:, subset] for subset in subsets]
        diameters = torch.stack([each.max() for each in among])
        smallest = diameters <= diameters.min() * (1 + 1e-12)
        totals = torch.stack([each.sum() for each in among]).where(smallest, torch.inf)
        return rows[subsets[int(totals.argmin())]].mean(0)
