"""The coordinate-wise median (Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML, Definition 1; arXiv 1803.01498).

    [med(x_1, ..., x_n)]_k = the median of [x_1]_k, ..., [x_n]_k

of an even number of rows the mean of the two in the middle. While fewer than half of the rows lie, each entry is within
the range of the honest ones. A row counts once, however many samples are behind it: who lies would lie about them, too.

Without anybody who lies it is not the mean: where gradients are skewed, it leans to one side, and training with it ends
elsewhere.

Cost: every row must be there: under bsp each worker gets the rows of all others; a server keeps n rows.

Use it where up to half of the workers may lie, and little else is known.
"""

from dataclasses import replace

from torch import Tensor

from .base import Robust
from .ranked import ranked


class Median(Robust):
    traits = replace(Robust.traits, coordinatewise=True)

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        n = len(rows)
        middle = ranked(rows, (n - 1) // 2, n // 2 + 1)
        return middle[0] if n % 2 else middle[0] / 2 + middle[1] / 2
