"""A rule that makes one vector of several workers' vectors, its rows.

A rule is pure, and does not ask whose row is whose.
"""

from abc import ABC, abstractmethod

from torch import Tensor


class Aggregator(ABC):
    """`streaming`: the weighted mean, which needs no two rows at once: rows are added up as they come.

    `coordinatewise`: each entry of the result depends on the same entry of the rows alone, so that a vector may be cut
    into pieces, each of which is aggregated apart.
    """

    streaming: bool = False
    coordinatewise: bool = False

    def check(self, rows: int) -> None:
        """Refuse a number of rows that is too small for the rule. Raises `LayoutError`."""

    def withstands(self, rows: int) -> int:
        """How many of so many rows may lie, by what the rule promises."""
        return 0

    @abstractmethod
    def aggregate(self, rows: Tensor, weights: Tensor) -> Tensor:
        """[n, d] and [n], positive: the samples behind each row -> [d], whatever the order of rows. `rows` stay."""
