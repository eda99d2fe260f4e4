"""The coordinate-wise trimmed mean (Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML, Definition 2; arXiv 1803.01498).

    of each column the f smallest and the f largest entries are left out; the mean of the other n - 2 f

Each entry is within the range of the honest ones. With f = 0 it is the mean of the rows, each counted once.

Cost: every row must be there, as for the median; the rows' entries are ranked by a sorting network.

Use it where workers' data are alike and a lie may stand in a few entries of a row alone. It leans less than the median.
"""

from dataclasses import replace

from torch import Tensor

from .base import Robust
from .ranked import ranked


class TrimmedMean(Robust):
    traits = replace(Robust.traits, coordinatewise=True)

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return ranked(rows, f, len(rows) - f).mean(0)
