"""The harness behind `make faults` counts rightly: what is wrong turns a row red, and a share leaves no kind out."""

import random
from pathlib import Path

import pytest
from faults.judge import Case, Outcome, WrongError, judge, sample, table, wilson


def right(place: Path) -> None:
    assert not list(place.iterdir())


def wrong(place: Path) -> None:
    raise WrongError("it went on")


def broken(place: Path) -> None:
    raise KeyError("a mistake of the harness")


def test_wilsons_bounds_are_those_of_the_paper_and_never_leave_0_to_1() -> None:
    low, high = wilson(200, 200)
    assert (round(low, 4), round(high, 4)) == (0.9812, 1.0)  # z^2 / (n + z^2) may go wrong yet
    low, high = wilson(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_wrong_case_and_a_broken_harness_are_both_counted_as_wrong() -> None:
    outcomes = list(judge([Case("kills", "a", right), Case("kills", "b", wrong), Case("stops", "c", broken)], 2))
    assert [outcome.wrong is None for outcome in outcomes] == [True, False, False]
    assert "it went on" in str(outcomes[1].wrong) and "the harness itself" in str(outcomes[2].wrong)
    rows = [line.split()[:4] for line in table(outcomes).splitlines()[2:]]
    assert rows[0] == ["kills", "2", "1", "1"] and rows[1] == ["stops", "1", "0", "1"]
    assert rows[-1] == ["all", "3", "1", "2"]


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_a_share_takes_at_least_one_case_of_each_kind_and_the_same_ones_for_a_seed(share: float) -> None:
    cases = [Case(kind, str(number), right) for kind in ("few", "many") for number in range(3 if kind == "few" else 50)]
    chosen = sample(cases, share, random.Random(1))
    assert chosen == sample(cases, share, random.Random(1))
    assert {case.kind for case in chosen} == {"few", "many"}
    assert len(chosen) == {0.0: 2, 0.1: 6, 1.0: 53}[share]


def test_an_outcome_says_how_long_it_took() -> None:
    (outcome,) = judge([Case("kills", "a", right)], 1)
    assert isinstance(outcome, Outcome) and outcome.seconds >= 0
