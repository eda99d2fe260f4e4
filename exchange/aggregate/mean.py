"""The mean of the rows, weighted by the samples behind them: sum_i (n_i / n) x_i.

One row of any length moves it anywhere: it withstands no worker that lies.

Cost: no more than the sum itself; where rows are not needed for another reason, they are added up as they come.
"""

from torch import Tensor

from .base import Aggregator, AggregatorTraits


class Mean(Aggregator):
    traits = AggregatorTraits(streaming=True, coordinatewise=True)

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return (weights / weights.sum()).to(rows.dtype) @ rows
