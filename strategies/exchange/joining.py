"""How the rows of workers become one vector, and what the workers that lie send.

Rows of the weighted mean can be added up on their way (`streaming`); any other rule, and an attack by workers that know
the honest rows, needs all rows in one place: on a server, or under bsp on every worker, which all compute the same.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import LayoutError
from .aggregate import Aggregator, Mean
from .attack import Attack, Honest
from .compress import Compressor
from .rank_order import RankOrderedSum


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

    def notes(self, compress: Compressor, replicas: int) -> list[str]:
        """What may surprise; see `Sync.notes`."""
        found: list[str] = []
        lying, most = len(self.attack.liars(replicas)), self.aggregate.withstands(replicas)
        if lying > most:
            found.append(
                f"attack.workers={self.attack.workers}: {lying} of {replicas} replicas lie, and this aggregate is made "
                f"for {most} at most: training may go anywhere"
            )
        if not lying and not isinstance(self.attack, Honest):
            found.append(f"attack.workers={self.attack.workers}: nobody lies")
        if not self.streaming and compress.sparse:
            found.append(
                "compress, aggregate: each worker sends other entries, so that of most entries most rows are 0, and so "
                "is what a median makes of them; compress=none, fp16 or bf16 goes with it"
            )
        return found

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
        return _checked(self.aggregate.aggregate(stacked, weighed), stacked, self.aggregate)

    def onto(self, total: Tensor, replicas: int) -> "RankOrderedSum | Rows":
        """What takes one row after another and makes `total`, [d] and zero, of them."""
        return RankOrderedSum(total) if self.streaming else Rows(total, self, replicas)

    def check_one_at_a_time(self) -> None:
        """Refuse what needs several rows at once, where each is used as it comes. Raises `LayoutError`."""
        if not self.streaming:
            raise LayoutError(
                "aggregate: this server applies each push as it comes, and never has several gradients to choose from; "
                "choose sync=parameter_server (or sync=ssp with sync.staleness=0), or aggregate=mean"
            )

    def check_pieces(self, servers: int) -> None:
        """Refuse to cut rows into pieces for several servers where a rule looks at whole rows. Raises `LayoutError`."""
        if servers > 1 and not self.aggregate.coordinatewise:
            raise LayoutError(
                f"sync.servers={servers}: this aggregate looks at whole gradients, and a server has a piece of each; "
                "choose sync.servers=1"
            )


def _checked(vector: object, rows: Tensor, by: Aggregator) -> Tensor:
    """What a rule gave: a user's may give anything."""
    if isinstance(vector, Tensor) and vector.shape == rows.shape[1:]:
        return vector
    gave = f"a tensor {list(vector.shape)}" if isinstance(vector, Tensor) else f"a {type(vector).__name__}"
    name = f"{type(by).__module__}.{type(by).__qualname__}.aggregate"
    raise ValueError(f"{name} returned {gave} for rows {list(rows.shape)}; must be a tensor {list(rows.shape[1:])}")


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
