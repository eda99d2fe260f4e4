"""Krum and multi-Krum (Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
NeurIPS, section 4; arXiv 1703.02757).

    score(i) = sum of ||x_i - x_j||^2 over the n - f - 2 rows j that are nearest to row i, itself not counted
    Krum = the row of the smallest score; multi-Krum = the mean of the m rows of the smallest scores

The distances are squared, and what Krum returns is one of its rows. Of rows of one score (two that are
each other's nearest, where one neighbour counts) that wins which is nearer to all. n > 2 f + 2.

Deviation: the paper leaves m open; m = n - f is taken here unless it is given, as in most comparisons since.

Cost: every row must be there; distances of all pairs, n^2 d operations in one product of matrices.

Use it where lies lie far from honest rows, as a whole. One row in place of a mean has the noise of one worker's batch:
`multi_krum` has less of it, and `before=nnm` too.
"""

from dataclasses import replace

from torch import Tensor

from ...conf.errors import ConfigError
from .base import Named, Robust
from .distances import squared


def scores(distances: Tensor, f: int) -> Tensor:
    """[n, n] squared -> [n]. At least one neighbour counts."""
    n = len(distances)
    nearest = distances.sort(dim=1).values  # itself comes first, at 0
    return nearest[:, 1 : 1 + max(n - f - 2, 1)].sum(1)


def ranking(distances: Tensor, f: int) -> list[int]:
    """The rows from the smallest score on; of equal scores that with less to all rows."""
    found, totals = scores(distances, f).tolist(), distances.sum(1).tolist()
    return sorted(range(len(found)), key=lambda i: (found[i], totals[i]))


class Krum(Robust):
    traits = replace(Robust.traits, bound="n > 2 f + 2")

    def most(self, rows: int) -> int:
        return (rows - 3) // 2

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return rows[ranking(squared(rows), f)[0]].clone()


class MultiKrum(Krum):
    def __init__(
        self,
        f: int | None = None,
        before: Named = "none",
        bucket: int | None = None,
        selected: int | None = None,
        seed: int = 0,
    ) -> None:
        """`selected`: m; None for n - f. Raises `ConfigError`."""
        super().__init__(f, before, bucket, seed)
        if selected is not None and selected < 1:
            raise ConfigError(f"aggregate.selected={selected}: must be at least 1, or null for n - f")
        self.m = selected

    def check(self, rows: int) -> None:
        super().check(rows)
        if self.m is not None and self.m > (left := self.before.rows(rows)):
            raise ConfigError(f"aggregate.selected={self.m}: the rule is given {left} rows. Choose at most as many.")

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        m = min(self.m or len(rows) - f, len(rows))
        return rows[sorted(ranking(squared(rows), f)[:m])].mean(0)
