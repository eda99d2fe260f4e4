"""Checks of an aggregation rule: its declared traits, its bound, and what it makes of Byzantine rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..conf.errors import ConfigError
from ..exchange.aggregate import Aggregator
from ..exchange.aggregate.base import AggregatorTraits
from ..exchange.aggregation import Aggregation
from ..strategies.core.state import from_bytes, to_bytes
from .checks import InvariantCheck, Suite, known_terms, name_of, require, require_equal, run_all

AGGREGATORS: Suite["TriedAggregator"] = Suite()
MOST_ROWS = 64  # that are looked for, of a rule that needs many
WIDTH = 23  # entries of a row
NEAR = 1e-9  # relative to the longest row: sums in float64, in another order


@dataclass(frozen=True)
class TriedAggregator:
    """An aggregation rule that is to be tried.

    Args:
        make: builds a new one.
        rows: the rows that it is given; None for 11, or as many more as it needs.
    """

    make: Callable[[], Aggregator]
    rows: int | None = None

    @property
    def traits(self) -> AggregatorTraits:
        return self.make().traits

    @property
    def n(self) -> int:
        if self.rows is not None:
            return self.rows
        return next((n for n in range(11, MOST_ROWS) if accepts(self.make(), n)), MOST_ROWS)

    @property
    def f(self) -> int:
        return max(self.make().withstands(self.n), 0)

    @property
    def fixed(self) -> int:
        """Returns the number of rows whose place matters: the joining worker's own, or that of a trusted replica."""
        return int(self.traits.local or self.make().first is not None)

    def given(self, seed: int = 0) -> Tensor:
        """[n, d], float64, about a point other than 0."""
        draws = torch.Generator().manual_seed(seed)
        return 1.0 + torch.randn(self.n, WIDTH, generator=draws, dtype=torch.float64)

    def made(self, rows: Tensor, rule: Aggregator | None = None, f: int | None = None) -> Tensor:
        """[n, d] -> [d], by a new rule or this one. Each row has one sample."""
        weights = torch.ones(len(rows), dtype=torch.float64)
        return (rule or self.make()).aggregate(rows, weights, self.f if f is None else f)


def accepts(rule: Aggregator, rows: int) -> bool:
    try:
        rule.check(rows)
    except ConfigError:
        return False
    return True


def require_close(measured: Tensor, expected: Tensor, rows: Tensor, told: str) -> None:
    far = float((measured - expected).abs().max())
    most = NEAR * float(rows.norm(dim=1).max())
    require(far <= most, f"{told}, to {most:.1g}", f"{far:.3g} off")


def joins_rows(tried: TriedAggregator) -> bool:
    """Returns whether it is given rows together, and not one by one."""
    return not tried.traits.one_by_one


def is_robust(tried: TriedAggregator) -> bool:
    return joins_rows(tried) and tried.traits.robust


@AGGREGATORS.invariant("strategies/core/terms.py")
def terms_are_known(tried: TriedAggregator) -> None:
    """`lacks` has terms of the group itself, and `needs` terms of other groups, all of the vocabulary."""
    known_terms(tried.make(), "aggregate")


@AGGREGATORS.invariant("Aggregator.aggregate", joins_rows)
def the_result_is_a_row_of_its_own(tried: TriedAggregator) -> None:
    """The result has the form of a row, in memory of its own. The rows stay as they were."""
    for dtype in (torch.float64, torch.float32):
        rows = tried.given().to(dtype)
        kept = rows.clone()
        made = tried.made(rows)
        require_equal((tuple(made.shape), made.dtype), ((WIDTH,), dtype), "shape and dtype")
        made.zero_()  # a view of a row would change it
        require(torch.equal(rows, kept), "rows as they were", "rows that changed, or a result that is a view of one")


@AGGREGATORS.invariant("Blanchard et al. 2017 (Krum), Yin et al. 2018; exchange/aggregate/base.py", joins_rows)
def the_order_of_rows_does_not_matter(tried: TriedAggregator) -> None:
    """A permutation of the rows gives the same result. Only the worker's own row and a trusted one have a place."""
    rows, fixed = tried.given(), tried.fixed
    order = torch.randperm(len(rows) - fixed, generator=torch.Generator().manual_seed(1)) + fixed
    moved = torch.cat([rows[:fixed], rows[order]])
    require_close(tried.made(moved), tried.made(rows), rows, "the result of the rows in another order")


@AGGREGATORS.invariant("AggregatorTraits.streaming", lambda tried: tried.traits.streaming)
def it_is_the_weighted_mean(tried: TriedAggregator) -> None:
    """A streaming rule is sum_i (n_i / n) x_i, with n_i samples behind row i: rows are added up as they come."""
    rows, weights = tried.given(), torch.arange(1.0, tried.n + 1, dtype=torch.float64)
    require_close(tried.make().aggregate(rows, weights, 0), weights @ rows / weights.sum(), rows, "the weighted mean")


@AGGREGATORS.invariant(
    "AggregatorTraits.coordinatewise", lambda tried: joins_rows(tried) and tried.traits.coordinatewise
)
def entries_are_joined_by_themselves(tried: TriedAggregator) -> None:
    """An entry of the result depends on the same entry of the rows alone."""
    rows = tried.given()
    some = tried.made(rows[:, ::2].contiguous())
    require_close(some, tried.made(rows)[::2], rows, "the entries of the result of whole rows")


@AGGREGATORS.invariant("AggregatorTraits.of_points", lambda tried: joins_rows(tried) and tried.traits.of_points)
def rows_may_be_measured_from_any_point(tried: TriedAggregator) -> None:
    """The same vector added to each row is added to the result."""
    rows = tried.given()
    moved = rows + torch.linspace(-3, 3, WIDTH, dtype=torch.float64)
    require_close(tried.made(moved), tried.made(rows) + (moved - rows)[0], moved, "the result, moved by the vector")


@AGGREGATORS.invariant(
    "every aggregate of one point is that point",
    lambda tried: joins_rows(tried) and not tried.traits.remembers and not tried.traits.resizes,
)
def equal_rows_give_that_row(tried: TriedAggregator) -> None:
    """The result of equal rows is that row: it is a mean, and not a sum."""
    rows = tried.given()[:1].repeat(tried.n, 1)
    weights = torch.full((tried.n,), 1 / tried.n, dtype=torch.float64)
    require_close(tried.make().aggregate(rows, weights, 0), rows[0], rows, "the row")


@AGGREGATORS.invariant("Aggregator.withstands, Aggregator.check, AggregatorTraits.bound", is_robust)
def too_few_rows_are_refused(tried: TriedAggregator) -> None:
    """`check` refuses too few rows with a ConfigError. Of accepted rows fewer than all may be Byzantine."""
    require(bool(tried.traits.bound), "a bound in words", "an empty AggregatorTraits.bound")
    for n in range(1, tried.n + 1):
        rule = tried.make()
        if accepts(rule, n):
            may = rule.withstands(n)
            require(0 <= may < n, f"0 to {n - 1} of {n} rows may be Byzantine", f"withstands({n}) = {may}")


@AGGREGATORS.invariant(
    "AggregatorTraits.bound; Blanchard et al. 2017 (arXiv 1703.02757): the mean withstands none",
    lambda tried: is_robust(tried) and not tried.traits.resizes,
)
def byzantine_rows_do_not_carry_it_away(tried: TriedAggregator) -> None:
    """The result stays within three honest rows' length, with as many rows of entries +-1e6 as it withstands."""
    for entry in (1e6, -1e6):
        rows, f = tried.given(3), tried.f
        honest = rows[: tried.n - f]
        rows[tried.n - f :] = entry
        made = Aggregation(tried.make(), None).join(
            dict(enumerate(rows)), dict.fromkeys(range(tried.n), 1.0), tried.n, 0
        )
        far, most = float((made - honest.mean(0)).norm()), 3 * float(honest.norm(dim=1).max())
        told = f"with {f} of {tried.n} rows of {entry:.0e}, a result within {most:.3g} of the honest mean"
        require(far < most, told, f"{far:.3g} away")


@AGGREGATORS.invariant(
    "exchange/aggregation.py removes such rows, and tells f - 1", lambda tried: is_robust(tried) and tried.f > 0
)
def a_row_of_nan_is_left_out(tried: TriedAggregator) -> None:
    """The result is finite, although a row is not."""
    rows = tried.given()
    rows[-1] = torch.nan
    made = Aggregation(tried.make(), None).join(dict(enumerate(rows)), dict.fromkeys(range(tried.n), 1.0), tried.n, 0)
    require(bool(made.isfinite().all()), "finite numbers", f"{int((~made.isfinite()).sum())} that are not")


@AGGREGATORS.invariant("AggregatorTraits.remembers", lambda tried: joins_rows(tried) and not tried.traits.remembers)
def a_result_does_not_depend_on_those_before(tried: TriedAggregator) -> None:
    """A rule that remembers nothing gives the same result in each step, and has nothing to save."""
    used = tried.make()
    tried.made(tried.given(1), used)
    require(
        torch.equal(tried.made(tried.given(), used), tried.made(tried.given())), "the result of a new rule", "another"
    )
    require_equal(used.state_dict(), {}, "state_dict")


@AGGREGATORS.invariant(
    "Aggregator.state_dict; docs/decisions/0004-resume-bit-for-bit.md",
    lambda tried: joins_rows(tried) and tried.traits.remembers,
)
def a_saved_rule_goes_on_where_it_was(tried: TriedAggregator) -> None:
    """A new rule with the saved state gives the next result bit for bit."""
    used, resumed = tried.make(), tried.make()
    for seed in (1, 2):
        tried.made(tried.given(seed), used)
    resumed.load_state_dict(from_bytes(to_bytes(used.state_dict())))
    expected, measured = (tried.made(tried.given(), rule) for rule in (used, resumed))
    off = float((expected - measured).abs().max())
    require(torch.equal(expected, measured), "the result without a stop, bit for bit", f"{off:.3g} off")


@AGGREGATORS.invariant("Aggregator.admitted, Aggregator.state_dict", lambda tried: tried.traits.one_by_one)
def a_pushed_row_stays_and_nan_is_left_out(tried: TriedAggregator) -> None:
    """`admitted` changes no row, leaves out a row of NaN, and decides as before after it was saved and loaded."""
    used, resumed, rows = tried.make(), tried.make(), tried.given()
    kept, trusted = rows.clone(), used.trusted or 0
    used.admitted(rows[0], trusted)
    resumed.load_state_dict(from_bytes(to_bytes(used.state_dict())))
    one, other = (rule.admitted(rows[1], trusted + 1) for rule in (used, resumed))
    same = one is other or (one is not None and other is not None and torch.equal(one, other))
    require(same, "the same row from a rule that was loaded", "another")
    require(torch.equal(rows, kept), "rows as they were", "rows that changed")
    row_of_nan = used.admitted(torch.full_like(rows[0], torch.nan), trusted + 1)
    require(row_of_nan is None, "None for a row of NaN", row_of_nan)


# -- for a class of one's own


def aggregator_checks(make: Callable[[], Aggregator], rows: int | None = None) -> list[InvariantCheck]:
    """Returns the checks of an aggregation rule, for `pytest.mark.parametrize`.

    Args:
        make: the class, or a function that builds the rule.
        rows: the rows that it is given; None for 11, or as many more as it needs.
    """
    return AGGREGATORS.checks(TriedAggregator(make, rows), name_of(make, make()))


def check_aggregator(make: Callable[[], Aggregator], **how: Any) -> list[str]:
    """Runs `aggregator_checks` and returns the names of the invariants. Raises one `InvariantError` of all failures."""
    return run_all(aggregator_checks(make, **how))
