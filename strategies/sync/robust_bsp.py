"""BSP that withstands replicas which lie (sync=bsp with an aggregate, or an attack).

Every replica j sends its gradient g_j to all. An attack has some replicas send another vector. All replicas then join
the K vectors by the same rule,

    g = rule(g_1, ..., g_K)

and step with it, so that they stay bit-identical. The mean under an attack whose workers know nothing of the others
needs no vector whole: it is summed, share_j g_j, as in bsp.py. The rules and attacks are in exchange/aggregate/ and
exchange/attack/; exchange/aggregation.py applies them.

Both look at a gradient as one vector. So there is one bucket, and nothing is sent before backward is over.

Cost per step and worker, S bytes of gradient, K replicas: send (K-1) S and all_gather 8 (K-1), the shares.
"""

import sys
from collections.abc import Sequence

from torch import nn

from ...comm import Work
from ...exchange.buckets import allocate
from ...exchange.exchange import Exchange
from ...exchange.reducer import Reduction

WHOLE = sys.maxsize  # bytes: the capacity of the one bucket


class RobustReduction(Reduction):
    """Joins the gradients of all replicas once they are whole."""

    def __init__(self, parameters: Sequence[nn.Parameter], exchange: Exchange) -> None:
        super().__init__(parameters, allocate(parameters, WHOLE, WHOLE))
        self._exchange = exchange

    def close(self, share: float, step: int) -> list[Work]:
        [bucket] = self.buckets
        self._exchange.mean(bucket.key, bucket.flat, share, 1.0, step)
        return []
