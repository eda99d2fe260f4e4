"""How the rows of workers become one vector, and what those among them send that lie.

Rows of the weighted mean can be added up on their way (`streaming`); any other rule, and an attack by workers that know
the honest rows, needs all rows in one place: on a server, or under bsp on every worker, which all compute the same.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .aggregate import Aggregator, Mean
from .attack import Attack, Honest


class Joining:
    """`plain`: nobody lies and the rule is the mean, which is plain training."""

    def __init__(self, aggregate: Aggregator | None, attack: Attack | None) -> None:
        """None for the mean, and for nobody."""
        self.aggregate, self.attack = aggregate or Mean(), attack or Honest()
        self.streaming = self.aggregate.streaming and not self.attack.colludes
        self.plain = self.streaming and isinstance(self.attack, Honest)

    def check(self, replicas: int) -> None:
        """Raises `LayoutError`."""
        self.attack.check(replicas)
        self.aggregate.check(replicas)

    def sent(self, own: Tensor, replica: int, replicas: int) -> Tensor:
        """[d], what this replica should send -> what it sends."""
        if self.attack.colludes or replica not in self.attack.liars(replicas):
            return own
        return self.attack.forge(own, None)

    def join(self, rows: Mapping[int, Tensor], weights: Mapping[int, float], replicas: int) -> Tensor:
        """By replica: [d], and the samples behind it or their share; those of none are left out -> [d]."""
        given = [replica for replica in sorted(rows) if weights[replica] > 0]
        stacked = torch.stack([rows[replica] for replica in given])
        lying = [i for i, replica in enumerate(given) if replica in self.attack.liars(replicas)]
        if self.attack.colludes and lying:
            honest = stacked[[i for i in range(len(given)) if i not in lying]]
            for i in lying:
                stacked[i] = self.attack.forge(stacked[i], honest)
        weighed = torch.tensor([weights[replica] for replica in given], dtype=torch.float64, device=stacked.device)
        return self.aggregate.aggregate(stacked, weighed)


class Rows:
    """Rows that come in any order and are joined once all are there: as `RankOrderedSum`, for any rule."""

    def __init__(self, total: Tensor, joining: Joining, replicas: int) -> None:
        """`total`: [d], for the result."""
        self.total, self._joining, self._replicas = total, joining, replicas
        self._rows: dict[int, Tensor] = {}
        self._weights: dict[int, float] = {}

    @property
    def ranks(self) -> set[int]:
        return set(self._rows)

    def add(self, rank: int, weight: float, row: Tensor) -> None:
        """`row` may be used again after that."""
        self._rows[rank], self._weights[rank] = row.clone(), weight

    def close(self) -> Tensor:
        """[d]; at least one row was given."""
        return self.total.copy_(self._joining.join(self._rows, self._weights, self._replicas))

    def clear(self) -> None:
        self._rows.clear()
        self._weights.clear()
