"""The time of a kernel on a machine that was measured, interpolated between the measured sizes.

A kernel is one call of an operator. Its table has the seconds of calls of other sizes:

    [size, seconds]                    operators that stream: piecewise linear in logarithms
    [batch, m, n, k, seconds] etc.     products, convolutions, attention: the rate (work a second, beside what a call
                                       takes at all) of the nearest points, weighted by 1 / distance^4 in logarithms
                                       (Shepard 1968)

Below the smallest size a call takes as long as there; above the largest as long for each unit of work as there. That
makes the tables a roofline whose roof was measured at each size (Williams et al. 2009).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log, prod

from .rules import CostError

NEAREST = 6
STREAMS = "mul"  # the table of streaming operators that have none of their own
VIEW = "view"


@dataclass(frozen=True)
class Kernel:
    """One call. `sizes`: as the points of its table begin. Of no table's: `STREAMS` is taken."""

    table: str
    sizes: tuple[float, ...]
    flops: float = 0.0


@dataclass(frozen=True)
class KernelTable:
    """Points of one operator: its sizes, then seconds."""

    points: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.points or len({len(point) for point in self.points}) != 1 or len(self.points[0]) < 2:
            raise CostError("a table of kernels: must have points of equally many numbers, at least 2 each")
        if not all(0 < number < float("inf") for point in self.points for number in point):
            raise CostError("a table of kernels: all numbers must be above 0")

    def seconds(self, sizes: Sequence[float]) -> float:
        return self._known.get(tuple(sizes)) or (self._streamed(sizes[0]) if self.flat else self._computed(sizes))

    @property
    def flat(self) -> bool:
        return len(self.points[0]) == 2

    @cached_property
    def _known(self) -> dict[tuple[float, ...], float]:
        return {point[:-1]: point[-1] for point in self.points}

    @cached_property
    def _curve(self) -> tuple[list[float], list[float]]:
        ordered = sorted(self.points)
        return [point[0] for point in ordered], [point[1] for point in ordered]

    def _streamed(self, size: float) -> float:
        sizes, seconds = self._curve
        at = bisect_left(sizes, size)
        if at == 0:
            return seconds[0]
        if at == len(sizes):
            return seconds[-1] * size / sizes[-1]
        share = log(size / sizes[at - 1]) / log(sizes[at] / sizes[at - 1])
        return exp((1 - share) * log(seconds[at - 1]) + share * log(seconds[at]))

    @cached_property
    def floor(self) -> float:
        """Returns the least seconds of a call: the quickest that was measured, less a little, so that rates are
        finite.
        """
        return 0.9 * min(point[-1] for point in self.points)

    @cached_property
    def _rates(self) -> list[tuple[tuple[float, ...], float]]:
        """Logarithms of the sizes, and of the work a second."""
        return [
            (tuple(map(log, point[:-1])), log(prod(point[:-1]) / (point[-1] - self.floor))) for point in self.points
        ]

    def _computed(self, sizes: Sequence[float]) -> float:
        at = tuple(log(max(size, 1.0)) for size in sizes)
        near = sorted((sum((a - b) ** 2 for a, b in zip(at, place, strict=True)), rate) for place, rate in self._rates)
        near = near[:NEAREST]
        weights = [1 / (distance**2 + 1e-12) for distance, _ in near]
        rate = sum(weight * each for weight, (_, each) in zip(weights, near, strict=True)) / sum(weights)
        return self.floor + exp(sum(at) - rate)


@dataclass(frozen=True)
class KernelRates:
    """The measured rates of one process among `processes` that compute at once, with `threads` each.

    `costs`: seconds of what is no kernel: a call of a module (module), an operator's entry in autograd's graph (graph)
    and its visit in the backward pass beside its kernels (node), a view in forward (view) and backward (view_back), a
    parameter whose gradient goes to a bucket (parameter), a parameter that an optimizer steps (stepped), and a step of
    the training loop beside all that (step). Some may be below 0, where a kernel is called more cheaply than it was
    measured.
    """

    threads: int
    processes: int
    tables: Mapping[str, KernelTable]
    costs: Mapping[str, float]
    _cache: dict[tuple[str, tuple[float, ...]], float] = field(
        default_factory=dict[tuple[str, tuple[float, ...]], float], repr=False, compare=False
    )

    def seconds(self, kernel: Kernel) -> float:
        key = kernel.table, kernel.sizes
        if key not in self._cache:
            table = self.tables.get(kernel.table) or self.tables[STREAMS]
            if len(table.points[0]) != len(kernel.sizes) + 1:  # not measured so: charged for going through its memory
                table = self.tables[STREAMS]
            self._cache[key] = table.seconds(kernel.sizes if not table.flat else kernel.sizes[:1])
        return self._cache[key]

    def forward(self, kernels: Sequence[Kernel], modules: int) -> float:
        views = sum(kernel.table == VIEW for kernel in kernels)
        called = sum(self.seconds(kernel) + self.costs["graph"] for kernel in kernels if kernel.table != VIEW)
        return max(called + views * self.costs["view"] + modules * self.costs["module"], 0.0)

    def backward(self, kernels: Sequence[Kernel]) -> float:
        views = sum(kernel.table == VIEW for kernel in kernels)
        called = sum(max(self.seconds(kernel) + self.costs["node"], 0.0) for kernel in kernels if kernel.table != VIEW)
        return max(called + views * self.costs["view_back"], 0.0)

    def plain(self, kernels: Sequence[Kernel]) -> float:
        """Returns the seconds of operators that are called with no graph, as an optimizer does."""
        return sum(self.seconds(kernel) if kernel.table != VIEW else self.costs["view"] for kernel in kernels)
