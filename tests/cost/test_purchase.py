"""Buying and renting: the lectures' figures, and what must hold of them."""

import pytest

from paceline.cost.purchase import PFLOP, break_even, owning, pflop_per_dollar, renting, work_of_a_year
from paceline.cost.rules import CostError


def test_a_year_of_eight_a100_at_half_occupancy() -> None:
    work = work_of_a_year(8, 19.5e12, 0.5)
    assert work / PFLOP == 2_459_808
    assert round(pflop_per_dollar(work, 55_534), 1) == 44.3
    assert round(pflop_per_dollar(work, 143_544), 1) == 17.1


def test_a_years_rent_is_that_of_the_hours_at_work() -> None:
    """AWS's list price of eight A100 (p4d.24xlarge), 32.7726 an hour, is the lectures' $143,544 at half occupancy."""
    assert round(renting(32.7726, 0.5)) == 143_544
    assert renting(10, 1) == 87_600


def test_depreciation_is_straight_line() -> None:
    """A quarter a year writes all of the price off in four years; what runs costs beside it."""
    assert owning(222_136, 0.25) == 55_534
    assert 4 * owning(100_000, 0.25, 1_000) == 104_000


@pytest.mark.parametrize("occupancy", [0.2, 0.5, 1.0])
def test_at_the_break_even_both_cost_the_same(occupancy: float) -> None:
    own = owning(200_000, 0.25)
    even = break_even(own, renting(32.0, occupancy), occupancy)
    assert renting(32.0, even) == pytest.approx(own, rel=1e-12)


def test_what_cannot_be_is_refused() -> None:
    for call in (
        lambda: work_of_a_year(8, 1e12, 1.5),
        lambda: owning(-1, 0.25),
        lambda: owning(1, 0),
        lambda: renting(float("nan"), 0.5),
    ):
        with pytest.raises(CostError, match="must be"):
            call()
