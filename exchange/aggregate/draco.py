"""Coded gradients, DRACO with its repetition code (Chen, Wang, Charles and Papailiopoulos 2018, "DRACO:
Byzantine-resilient Distributed Training via Redundant Gradients", ICML, section 4; arXiv 1803.09877).

    K replicas in groups of r = 2 f + 1; those of a group compute the gradient of the same samples
    of each group the row that most of it sent, to the bit;        g = sum over groups of (n_g / n) row_g

Whatever f replicas send, in each group at least f + 1 send the same true row: g is that of plain training on K / r
replicas without liars, bit for bit. Nothing is assumed of how gradients are spread, and nothing is lost but the
computing: r times as much for the same step. Rows that are not finite are no special case.

A group without a majority ends the run: more lied than the code withstands.

Deviation: the decoder compares all pairs of a group's rows, where the paper's counts votes in one pass; r is small.

Cost: every row must be there; r (r - 1) / 2 comparisons a group.

Use it where a rule's error is not to be had at any price, and computing is cheap: f = 1 takes three times as much.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from ...conf.errors import ConfigError
from ...strategies.core.errors import NotFiniteError
from .base import Aggregator, AggregatorTraits


class Draco(Aggregator):
    traits = AggregatorTraits(coordinatewise=True, of_points=False)

    def __init__(self, f: Annotated[int, Ge(1)] = 1) -> None:
        """`f`: how many replicas may lie."""
        self.f, self.copies = f, 2 * f + 1

    def withstands(self, rows: int) -> int:
        assert self.f is not None
        return self.f

    def check(self, rows: int) -> None:
        if rows % self.copies:
            below = rows // self.copies * self.copies
            nearest = f"{below} or {below + self.copies}" if below else f"{self.copies}"
            raise ConfigError(
                f"aggregate.f={self.f}: groups of 2 f + 1 = {self.copies} replicas compute the same, and there are "
                f"{rows}, no multiple of it. Choose hardware.workers for {nearest} of them, or another aggregate.f."
            )

    def decoded(self, rows: Tensor, replicas: Sequence[int], step: int) -> list[int]:
        """[n, d], of these replicas in their order -> of each group a row that most of it sent. Raises
        `NotFiniteError` where there is none.
        """
        groups: dict[int, list[int]] = {}
        for i, replica in enumerate(replicas):
            groups.setdefault(replica // self.copies, []).append(i)
        return [self._majority(rows, members, group, step) for group, members in groups.items()]

    def _majority(self, rows: Tensor, members: list[int], group: int, step: int) -> int:
        bits = rows.view(_INTEGERS[rows.element_size()])  # NaN is not NaN, but its bits are
        for i in members:
            if sum(torch.equal(bits[i], bits[j]) for j in members) > self.copies // 2:
                return i
        first = group * self.copies
        raise NotFiniteError(
            f"no {self.copies // 2 + 1} of replicas {first} to {first + self.copies - 1} sent the same in step {step}, "
            f"and aggregate.f={self.f} withstands {self.f} that lie; a larger aggregate.f withstands more"
        )

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        """Of the decoded rows. As the fabric adds them up: each is scaled, and added in their order."""
        total = rows[0] * float(weights[0])
        for row, share in zip(rows[1:], weights[1:].tolist(), strict=True):
            total += row * share
        return total


_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
