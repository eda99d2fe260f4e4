"""Days of training, against the figures of the paper and flops counted by hand."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paceline.cost.rules import CostError
from paceline.cost.training_time import DAY, YEAR, dollars_of, flops_per_parameter, machines_of, seconds_of


def test_recomputation_is_two_flops_more() -> None:
    assert (flops_per_parameter(False), flops_per_parameter(True)) == (6, 8)


def test_gpt3_takes_what_the_paper_says() -> None:
    """Narayanan et al. 2021: 288 years on one V100, and 34 days on 1,024 A100 (section 5.1)."""
    assert round(seconds_of(175e9, 300e9, 8, 1, 46.2e12) / YEAR) == 288
    assert round(seconds_of(175e9, 300e9, 8, 1024, 140e12) / DAY) == 34


@pytest.mark.slow  # torch's counter takes seconds to import
@pytest.mark.parametrize(("recompute", "flops"), [(False, 6), (True, 8)])
def test_flops_of_a_parameter_and_token_are_those_that_torch_counts(recompute: bool, flops: int) -> None:
    """Of a linear layer whose inputs have a gradient, as within a deep model; what follows it keeps its outputs."""
    from torch.utils.flop_counter import FlopCounterMode

    layer, inputs = nn.Linear(16, 24, bias=False), torch.randn(10, 16, requires_grad=True)
    block = nn.Sequential(layer, nn.GELU())
    with FlopCounterMode(display=False) as counter:
        outputs = checkpoint(block, inputs, use_reentrant=False) if recompute else block(inputs)
        assert isinstance(outputs, torch.Tensor)
        outputs.sum().backward()
    counted = counter.get_total_flops() / (layer.weight.numel() * len(inputs))
    assert flops_per_parameter(recompute) == flops and counted == flops


def test_time_goes_with_the_work_and_against_devices_and_rate() -> None:
    alone = seconds_of(1e9, 1e10, 6, 1, 1e14)
    assert alone == 6e5
    assert seconds_of(2e9, 1e10, 6, 8, 1e14) == alone * 2 / 8
    assert seconds_of(1e9, 3e10, 6, 1, 2e14) == alone * 3 / 2


@pytest.mark.parametrize(("devices", "a_machine", "machines"), [(8, 8, 1), (9, 8, 2), (1024, 8, 128), (5, 0, 1)])
def test_machines_are_rented_whole(devices: int, a_machine: int, machines: int) -> None:
    assert machines_of(devices, a_machine) == machines


def test_rent_is_hours_times_machines_times_price() -> None:
    assert dollars_of(7200, 3, 40.5) == 2 * 3 * 40.5


@pytest.mark.parametrize("broken", ["parameters", "tokens", "per_parameter", "devices", "flops"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), 1e30])
def test_what_no_training_has_is_refused(broken: str, value: float) -> None:
    good = {"parameters": 1e9, "tokens": 1e9, "per_parameter": 6, "devices": 8, "flops": 1e12}
    with pytest.raises(CostError, match=f"{broken}=.*must be"):
        seconds_of(**good | {broken: value})


def test_devices_are_whole() -> None:
    with pytest.raises(CostError, match=r"devices=1.5: must be a whole number"):
        seconds_of(1e9, 1e9, 6, 1.5, 1e12)
