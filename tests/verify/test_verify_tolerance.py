"""The tolerance: what rounding did to serial training, by tensor; and what the judge makes of differences."""

import pytest
import torch
from torch import nn

from paceline.verify.reference import MARGIN, Serial, _derived, _Noise, _noise, distance, largest


def serial(scale: float, error: dict[str, float]) -> Serial:
    tensors = {name: torch.tensor([scale, -scale / 2]) + far for name, far in error.items()}
    return Serial([1.0 + error["a"]], [tensors], [tensors])


def test_of_a_tensor_what_float64_shows_is_allowed_and_no_less_than_the_median_of_all() -> None:
    exact = serial(4.0, {"a": 0.0, "b": 0.0, "c": 0.0})
    ours = serial(4.0, {"a": 4e-3, "b": 0.0, "c": 4e-4})
    allowed = _derived([ours], exact).weights[0]
    assert allowed["a"] == pytest.approx(MARGIN * 4e-3, rel=1e-3)
    assert allowed["c"] == pytest.approx(MARGIN * 4e-4, rel=1e-2)
    assert allowed["b"] == pytest.approx(allowed["c"], rel=1e-2)  # lucky: the median stands in
    assert _derived([ours], exact).losses[0] == pytest.approx(MARGIN * 4e-3, rel=1e-3)


def test_the_largest_of_several_trainings_counts() -> None:
    exact = serial(4.0, {"a": 0.0})
    allowed = _derived([serial(4.0, {"a": far}) for far in (1e-4, 4e-3, 2e-4)], exact)
    assert allowed.weights[0]["a"] == pytest.approx(MARGIN * 4e-3, rel=1e-3)
    assert allowed.losses[0] == pytest.approx(MARGIN * 4e-3, rel=1e-3)


def test_noise_is_as_large_as_is_told_and_of_every_entry() -> None:
    layer = nn.Linear(20, 5, bias=False)
    layer.weight.grad = torch.zeros(5, 20)
    _Noise([{"weight": 1.0}, {"weight": 0.5}], seed=0).add(layer, 1)
    drawn = layer.weight.grad.abs()
    assert 0.45 < drawn.max() <= 0.5 and (drawn > 0).all() and (layer.weight.grad < 0).any()


def test_where_rounding_did_nothing_a_unit_in_the_last_place_is_allowed() -> None:
    exact = serial(4.0, {"a": 0.0})
    allowed = _derived([exact], exact)
    assert allowed.weights[0]["a"] == pytest.approx(MARGIN * 4.0 * torch.finfo(torch.float32).eps)


def test_a_number_that_is_none_is_infinitely_far() -> None:
    assert distance(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
    assert distance(torch.tensor([3.0]), torch.tensor([1.0])) == 2.0
    assert largest(torch.tensor([-3.0, 1.0])) == 3.0 and largest(torch.empty(0)) == 0.0


def test_noise_is_at_least_the_last_digit_of_a_gradient() -> None:
    """Training in float64 has no error to measure, and Muon's iteration makes more of rounding than eps."""
    exact = {"weight": torch.tensor([1.0, -4.0], dtype=torch.float64)}
    assert _noise(exact, exact) == {"weight": 4 * torch.finfo(torch.float64).eps}
    assert _noise({"weight": torch.tensor([1.0, -3.0])}, exact) == {"weight": 1.0}
