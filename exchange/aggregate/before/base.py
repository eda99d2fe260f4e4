"""A pre-aggregation: rows in, rows out."""

from abc import ABC, abstractmethod

from torch import Generator, Tensor


class Before(ABC):
    @abstractmethod
    def mix(self, rows: Tensor, f: int, draws: Generator) -> Tensor:
        """Transforms [n, d], all finite, of which f rows may be Byzantine -> [m, d]. `rows` stay.

        `draws`: the same on all workers that aggregate the same rows.
        """

    def rows(self, rows: int) -> int:
        """m, of n rows."""
        return rows

    def most(self, rows: int) -> int:
        """The largest f for which it is defined."""
        return rows


class Unchanged(Before):
    """Rows go to the rule as they are."""

    def mix(self, rows: Tensor, f: int, draws: Generator) -> Tensor:
        return rows
