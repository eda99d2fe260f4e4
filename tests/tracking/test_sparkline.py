"""Curves as one line of characters."""

import math

import pytest

from paceline.tracking.sparkline import ASCII, BLOCKS, curves, sparkline


def test_a_straight_line_climbs_through_every_level():
    curve = [(float(x), float(x)) for x in range(8)]
    assert sparkline(curve, 8) == BLOCKS and sparkline(curve, 8, ASCII) == ASCII
    assert sparkline([(x, -y) for x, y in curve], 8) == BLOCKS[::-1]


def test_parts_are_means_over_time_and_gaps_go_on():
    curve = [(0.0, 0.0), (0.1, 4.0), (0.2, 2.0), (9.9, 8.0), (10.0, 10.0)]
    drawn = sparkline(curve, 10, ASCII)
    assert drawn == ASCII[0] * 9 + ASCII[-1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_marked(value):
    assert sparkline([(0.0, 1.0), (1.0, value), (2.0, 2.0)], 3, ASCII) == f"{ASCII[0]}!{ASCII[-1]}"
    assert sparkline([(0.0, value), (1.0, -value)], 2) == "!!"


def test_the_largest_numbers_are_drawn():
    assert sparkline([(0.0, -1.7e308), (1.0, 1.7e308)], 2, ASCII) == f"{ASCII[0]}{ASCII[-1]}"
    assert sparkline([(0.0, 1.0), (1.0, 1e308), (1.1, 1.7e308)], 2, ASCII) == f"{ASCII[0]}!"
    assert curves([{"kind": "step", "step": step, "loss": 1.0} for step in ("nan", 2)])["loss"] == [(2.0, 1.0)]


def test_no_change_and_one_point_are_drawn_low():
    assert sparkline([(0.0, 5.0), (1.0, 5.0)], 4) == BLOCKS[0] * 4 and sparkline([(3.0, 5.0)], 40) == BLOCKS[0]


def test_curves_are_over_time_and_over_steps_where_that_is_unknown():
    records = [
        {"kind": "step", "step": 1, "time": 0.5, "loss": 2.0, "step_time": 0.1},
        {"kind": "step", "step": 2, "time": 1.0, "loss": "nan", "step_time": None},
        {"kind": "evaluation", "step": 9, "accuracy": 0.5},
        {"kind": "evaluation", "step": 4, "time": None, "accuracy": 0.25},
        {"kind": "end", "status": "completed"},
    ]
    found = curves(records)
    assert str(found["loss"]) == "[(0.5, 2.0), (1.0, nan)]" and found["step time"] == [(0.5, 0.1)]
    assert found["accuracy"] == [(4.0, 0.25), (9.0, 0.5)]
    assert curves([]) == {}
