"""The geometric median by the smoothed Weiszfeld algorithm, RFA (Pillutla, Kakade and Harchaoui 2022, "Robust
Aggregation for Federated Learning", IEEE TSP, Algorithm 2; arXiv 1912.13445).

    z <- sum_i beta_i x_i / sum_i beta_i,    beta_i = 1 / max(nu, ||z - x_i||)        `steps` times

The point of the smallest sum of distances (not squared) to the rows. Fewer than half of the rows cannot carry it away.

z is always a combination of rows, so that all distances follow from the rows' inner products: an iteration takes n^2
operations, however long the rows are.

Deviations: each row counts once; the paper weighs it by its samples, which a liar would lie about. z begins where each
row counts by 1 over its median distance to the others: from the mean, where the paper begins, a lie of length R is left
behind by a factor f / (n - f) in an iteration, and R may be anything. It ends early when no beta changes by more than
1e-12 of their sum.

Cost: every row must be there; distances of all pairs, n^2 d operations, and n^2 for each iteration.

Use it where data differ by worker and a whole row is right or wrong, as in federated learning.
"""

from typing import Annotated

from annotated_types import Gt
from torch import Tensor

from .base import Named, Robust
from .distances import apart, gram, middles, to_combination


class GeometricMedian(Robust):
    def __init__(
        self,
        f: int | None = None,
        before: Named = "none",
        bucket: int | None = None,
        nu: Annotated[float, Gt(0)] = 1e-6,
        steps: Annotated[int, Gt(0)] = 100,
        seed: int = 0,
    ) -> None:
        """`nu`: distances below it count as it. `steps`: at most. Raises `ConfigError`."""
        super().__init__(f, before, bucket, seed)
        self.nu, self.steps = nu, steps

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        products = gram(rows)
        shares = self._shares(middles(apart(products)))
        for _ in range(self.steps):
            before, shares = shares, self._shares(to_combination(products, shares))
            if float((shares - before).abs().max()) <= 1e-12:
                break
        return shares.to(rows.dtype) @ rows

    def _shares(self, distances: Tensor) -> Tensor:
        """[n], squared -> [n], beta_i / sum_i beta_i"""
        beta = 1 / distances.sqrt().clamp(min=self.nu)
        return beta / beta.sum()
