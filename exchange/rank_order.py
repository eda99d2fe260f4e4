"""A weighted sum of rows that come in any order, added in the order of ranks: the same bits, whoever was first."""

from torch import Tensor


class RankOrderedSum:
    """total <- sum_j weight_j row_j. What comes out of its turn is held until `close`, n - 1 rows at the most."""

    def __init__(self, total: Tensor) -> None:
        """`total`: [n], zero; it is added to in place."""
        self.total = total
        self.ranks: set[int] = set()  # that have given
        self.weights = 0.0  # their sum, in the order of ranks, once closed
        self._added: dict[int, float] = {}  # rank -> weight, of those that are in `total`
        self._held: dict[int, tuple[float, Tensor]] = {}

    def add(self, rank: int, weight: float, row: Tensor) -> None:
        """`row` may be used again after that."""
        self.ranks.add(rank)
        if rank != len(self._added):
            self._held[rank] = weight, row.clone()
            return
        self._add(rank, weight, row)
        while (following := len(self._added)) in self._held:
            self._add(following, *self._held.pop(following))

    def _add(self, rank: int, weight: float, row: Tensor) -> None:
        self.total.add_(row, alpha=weight)
        self._added[rank] = weight

    def close(self, step: int = 0) -> Tensor:
        """[n]: the mean over weights of all that were given; at least one was. `step`: it does not depend on it."""
        for rank in sorted(self._held):
            self._add(rank, *self._held.pop(rank))
        self.weights = sum(self._added.values())
        return self.total.div_(self.weights)

    def clear(self) -> None:
        """Begin anew, at zero."""
        self.total.zero_()
        self.ranks.clear()
        self._added.clear()
        self._held.clear()
