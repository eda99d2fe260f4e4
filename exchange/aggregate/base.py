"""A rule that makes one vector of several workers' vectors, its rows.

A rule is pure but for what it says that it remembers, and does not ask whose row is whose. It is told f, how many of
the rows may lie. Of n rows a rule withstands so many at most, its bound; `f=null` is as many as the bound allows.

A robust rule never sees a row that is not finite: such a row was removed, and f is one less for each (aggregation.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from ...conf.errors import ConfigError
from ...strategies.core.state import State
from ...strategies.core.terms import (
    ADDED_UP,
    COMMON_ORIGIN,
    LOSSLESS,
    MEAN_LENGTH,
    NEIGHBOURS,
    PUSHES,
    ROWS_TOGETHER,
    SAME_GRADIENTS,
    WHOLE_REPLICA,
    WHOLE_VECTORS,
    Compatible,
    Need,
    Term,
    absent,
    required,
)
from .before import ARC, Before, Bucketing, Mixing, Unchanged

Named = Literal["none", "nnm", "bucketing", "arc"]


BUCKET = 2  # rows, where nothing is said


def before_named(name: Named, bucket: int | None) -> Before:
    """Builds the transformation of rows with this name. Raises `ConfigError`."""
    if bucket is not None and name != "bucketing":
        raise ConfigError(
            f"aggregate.bucket={bucket}: is of aggregate.before=bucketing, and aggregate.before={name} makes no "
            "buckets. Choose aggregate.before=bucketing, or leave aggregate.bucket null."
        )
    match name:
        case "nnm":
            return Mixing()
        case "bucketing":
            return Bucketing(BUCKET if bucket is None else bucket)
        case "arc":
            return ARC()
        case _:
            return Unchanged()


@dataclass(frozen=True)
class AggregatorTraits:
    """The declaration of a rule. A constructor may change it by the knobs."""

    streaming: bool = False  # the weighted mean, which needs no two rows at once: rows are added up as they come
    coordinatewise: bool = False  # an entry of the result depends on the same entry of the rows alone: it may be cut
    robust: bool = False  # rows that are not finite are removed before it, and it has a bound
    bound: str = ""  # on the f of n rows that may lie, in n and f
    remembers: bool = False  # a result depends on those before it
    local: bool = False  # the first row is that of the worker that joins, each for itself
    of_points: bool = True  # rows may be measured from any point, and the result is measured from there, too
    resizes: str = ""  # how it changes the length of gradients, whatever they are
    one_by_one: bool = False  # it is asked about each row as it comes, by `admitted`


class Aggregator(Compatible, ABC):
    """A rule that makes one row of several workers' rows.

    `copies`: so many replicas in a row are given the same samples, and `decoded` says which row of each group counts.
    `first`: the replica whose row comes first, where the rule must know it. `trusted`: the replica that it takes at its
    word.
    """

    traits = AggregatorTraits()
    copies: int = 1
    first: int | None = None
    trusted: int | None = None
    f: int | None = None
    before: Before = Unchanged()
    seed: int = 0

    @property
    def lacks(self) -> Mapping[Term, str]:
        resizes = self.traits.resizes
        return absent((ADDED_UP, self.traits.streaming)) | ({MEAN_LENGTH: resizes} if resizes else {})

    @property
    def needs(self) -> tuple[Need, ...]:
        traits, whole = self.traits, "looks at each replica's gradient as a whole"
        exactly = "compares gradients of the same samples and weights, bit for bit"
        return required(
            (Need(WHOLE_REPLICA, whole), not traits.coordinatewise),
            (Need(WHOLE_VECTORS, whole), not traits.coordinatewise),
            (Need(NEIGHBOURS, "measures from each worker's own weights"), traits.local),
            (Need(SAME_GRADIENTS, exactly), self.copies > 1),
            (Need(LOSSLESS, exactly), self.copies > 1),
            (Need(PUSHES, "looks at each push as it comes, by the last one of a trusted replica"), traits.one_by_one),
            (Need(COMMON_ORIGIN, "is a rule for gradients, or changes of weights"), not traits.of_points),
            (Need(ROWS_TOGETHER, "compares the gradients of all"), not (traits.streaming or traits.one_by_one)),
        )

    def most(self, rows: int) -> int:
        """The largest f that the bound allows; below 0: there are too few rows for any."""
        return 0

    def withstands(self, rows: int) -> int:
        """Returns how many of `rows` rows may be Byzantine for the rule to keep its promise: `f`, or less."""
        if not self.traits.robust:
            return 0
        most = min(self.before.most(rows), self.most(self.before.rows(rows)))
        return most if self.f is None else min(self.f, most)

    def check(self, rows: int) -> None:
        """Refuse a number of rows that is too small for the rule, or for its f. Raises `ConfigError`."""
        if not self.traits.robust:
            return
        mixed = self.before.rows(rows)
        most = min(self.before.most(rows), self.most(mixed))
        if most < (self.f or 0):
            said = f"aggregate.f={self.f}: " if self.f else ""
            left = "" if mixed == rows else f", of which {mixed} are left after aggregate.before"
            asked = f"at most f={most}" if most >= 0 else "too few for any f"
            smaller = ", a smaller aggregate.bucket" if isinstance(self.before, Bucketing) else ""
            raise ConfigError(
                f"{said}the rule needs {self.traits.bound}, and there are n={rows} rows{left}: {asked}. "
                f"Choose more hardware.workers{smaller}, or another aggregate.",
                about=() if self.f else ("aggregate",),
            )

    @abstractmethod
    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        """[n, d] and [n], positive: the samples behind each row -> [d], whatever the order of rows. `rows` stay; their
        memory is used again afterwards, so that what is remembered of them must be a copy.

        f: how many of the rows may lie.
        """

    def decoded(self, rows: Tensor, replicas: Sequence[int], step: int) -> list[int]:
        """[n, d], of these replicas -> which of the rows the rule is given, in their order. Raises `NotFiniteError`."""
        return list(range(len(rows)))

    def admitted(self, row: Tensor, replica: int) -> Tensor | None:
        """Returns the vector to step with, [d], for a row [d] that this replica pushed; None: no step. `row` stays."""
        return row

    def state_dict(self) -> State:
        """Returns the state that the rule keeps from one call to the next; {} if there is none."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restores the state that `state_dict` returned."""


class Robust(Aggregator):
    """A rule with a bound, and with what is done to rows before it. Each row counts once, whatever its samples."""

    traits = AggregatorTraits(robust=True, bound="n > 2 f")

    def __init__(self, f: int | None = None, before: Named = "none", bucket: int | None = None, seed: int = 0) -> None:
        """`f`: how many rows may lie; None for as many as the bound allows. `before`: see before/. `bucket`: rows of
        one bucket; None for 2, with bucketing. `seed`: of what `before` draws. Raises `ConfigError`.
        """
        if f is not None and f < 0:
            raise ConfigError(f"aggregate.f={f}: must be at least 0, or null for as many as the rule withstands")
        self.f, self.before, self.seed = f, before_named(before, bucket), seed
        by_entry = type(self).traits.coordinatewise and isinstance(self.before, Unchanged)
        self.traits = replace(self.traits, coordinatewise=by_entry)

    def most(self, rows: int) -> int:
        return (rows - 1) // 2
