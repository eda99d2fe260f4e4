"""Arithmetic of rows: those that an output row reads, those that a worker has, and those that it must be sent.

A deal of H rows over p workers is p + 1 bounds: worker i has the rows from deal[i] to deal[i + 1]. An output row
belongs to the worker that has the input row at the middle of what it reads, so that slabs stay contiguous, and a
kernel of one row reads nothing of others, whatever its stride.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

Deal = tuple[int, ...]
Range = tuple[int, int]  # of rows: the first one, and the one after the last


class Rule(Protocol):
    """The rows of the input that output rows read."""

    def reads(self, first: int, end: int) -> Range:
        """The input rows that the output rows from `first` to `end` read; those outside of the image are padding."""
        ...

    def middle(self, row: int) -> int:
        """The input row whose owner makes output row `row`; it may be outside of the image, too."""
        ...


@dataclass(frozen=True)
class Window:
    """A convolution or a pooling: row o reads the rows o s - p + d j for j = 0, ..., k - 1."""

    kernel: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def reads(self, first: int, end: int) -> Range:
        last = (end - 1) * self.stride - self.padding + self.dilation * (self.kernel - 1)
        return first * self.stride - self.padding, last + 1

    def middle(self, row: int) -> int:
        return row * self.stride - self.padding + self.dilation * ((self.kernel - 1) // 2)


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution: row o reads the rows i for which o = i s - p + d j with a j of 0, ..., k - 1.

    Repeating each row f times is that of k = s = f.
    """

    kernel: int
    stride: int
    padding: int = 0
    dilation: int = 1

    def reads(self, first: int, end: int) -> Range:
        low = -((self.dilation * (self.kernel - 1) - first - self.padding) // self.stride)  # rounded up
        high = (end - 1 + self.padding) // self.stride
        return min(max(low, 0), self.middle(first)), max(high, self.middle(end - 1)) + 1

    def middle(self, row: int) -> int:
        return (row + self.padding) // self.stride


class TooThinError(ValueError):
    """A worker would have no row, or need rows of one that is no neighbour."""


@dataclass(frozen=True)
class Halo:
    """The rows of the whole image that one worker reads at one layer. Empty ranges are (n, n)."""

    rule: Rule
    height: int  # of the whole input
    have: Range  # its own rows of the input
    make: Range  # its own rows of the output
    above: Range  # rows that the worker above sends it
    below: Range
    to_above: Range  # rows of its own that it sends there
    to_below: Range

    @property
    def reads(self) -> Range:
        """Rows below 0, and from `height` on, are padding."""
        low, high = self.rule.reads(*self.make)
        return (low, high) if isinstance(self.rule, Window) else (min(low, self.height - 1), min(high, self.height))

    @property
    def moves(self) -> bool:
        """Tells whether rows are exchanged."""
        return any(first < end for first, end in (self.above, self.below, self.to_above, self.to_below))

    @property
    def is_whole(self) -> bool:
        """Tells whether it reads just the rows that it has."""
        return self.reads == self.have

    @property
    def interior(self) -> Range:
        """The output rows that read nothing of others."""
        first, end = self.make
        while first < end and max(self.rule.reads(first, first + 1)[0], 0) < self.have[0]:
            first += 1
        while first < end and min(self.rule.reads(end - 1, end)[1], self.height) > self.have[1]:
            end -= 1
        return first, end


def even(height: int, workers: int) -> Deal:
    return tuple(i * height // workers for i in range(workers + 1))


def follow(rule: Rule, ins: Deal, rows: int) -> Deal:
    """The deal of `rows` output rows, where that of the input is `ins`."""
    starts = [bisect_left(range(rows), bound, key=rule.middle) for bound in ins[1:-1]]
    return 0, *starts, rows


def halos(rule: Rule, ins: Deal, outs: Deal) -> list[Halo]:
    """Returns the halo of each worker. Raises `TooThinError`, with the worker and what it lacks."""
    height, workers = ins[-1], len(ins) - 1
    aboves: list[Range] = []
    belows: list[Range] = []
    for i in range(workers):
        if outs[i] == outs[i + 1]:
            raise TooThinError(f"worker {i} would have none of its {outs[-1]} output rows")
        low, high = rule.reads(outs[i], outs[i + 1])
        low, high, first, end = min(max(low, 0), height - 1), min(high, height), ins[i], ins[i + 1]
        aboves.append((min(low, first), min(max(high, low), first)))
        belows.append((max(low, end), max(high, end)))
        for (start, stop), bound in ((aboves[i], ins[max(i - 1, 0)]), (belows[i], ins[min(i + 2, workers)])):
            if start < stop and (start < bound if stop <= first else stop > bound):
                raise TooThinError(
                    f"worker {i}, which has the rows {first} to {end - 1} of its {height} input rows, would read the "
                    f"rows {low} to {high - 1}, more than a neighbour has"
                )
    nothing = (0, 0)
    return [
        Halo(
            rule,
            height,
            (ins[i], ins[i + 1]),
            (outs[i], outs[i + 1]),
            aboves[i],
            belows[i],
            to_above=belows[i - 1] if i > 0 else nothing,
            to_below=aboves[i + 1] if i + 1 < workers else nothing,
        )
        for i in range(workers)
    ]
