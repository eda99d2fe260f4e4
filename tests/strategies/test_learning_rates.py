"""Learning-rate schedules against torch's own, step by step."""

import math
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as torchs

from paceline.conf.errors import ConfigError
from paceline.strategies.schedules import Horizon, Rate, Schedule, scaled
from paceline.strategies.schedules.constant import Constant
from paceline.strategies.schedules.cosine import Cosine
from paceline.strategies.schedules.inverse_sqrt import InverseSqrt
from paceline.strategies.schedules.linear import LinearDecay
from paceline.strategies.schedules.one_cycle import OneCycle
from paceline.strategies.schedules.polynomial import Polynomial
from paceline.strategies.schedules.step import Step

STEPS, WARM = 40, 8
HORIZON = Horizon(STEPS, 4, 1024)
LEFT = STEPS - WARM
AFTER = {
    "linear": (LinearDecay(end=0.1, warmup=WARM, warmup_from=0.25), lambda o: torchs.LinearLR(o, 1.0, 0.1, LEFT)),
    "cosine": (Cosine(end=0.1, warmup=WARM, warmup_from=0.25), lambda o: torchs.CosineAnnealingLR(o, LEFT, 0.1)),
    "polynomial": (Polynomial(power=3.0, warmup=WARM, warmup_from=0.25), lambda o: torchs.PolynomialLR(o, LEFT, 3.0)),
    "step": (
        Step(every=2, gamma=0.5, warmup=WARM / 4, warmup_from=0.25, unit="epochs"),
        lambda o: torchs.StepLR(o, 8, 0.5),
    ),
}


def rates(make) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def ours(schedule: Schedule) -> list[float]:
    return [schedule.factor(step, HORIZON) for step in range(STEPS)]


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
@pytest.mark.parametrize("name", AFTER)
def test_a_warm_up_and_then_a_schedule_are_torchs_in_sequence(name: str) -> None:
    schedule, make = AFTER[name]

    def sequence(o):
        return torchs.SequentialLR(o, [torchs.LinearLR(o, 0.25, 1.0, WARM), make(o)], [WARM])

    assert ours(schedule) == pytest.approx(rates(sequence), rel=1e-9, abs=1e-12)


def test_one_cycle_is_torchs() -> None:
    theirs = rates(lambda o: torchs.OneCycleLR(o, 1.0, STEPS + 1, cycle_momentum=False))
    found = [OneCycle().factor(step, Horizon(STEPS + 1, 4, 1)) for step in range(STEPS)]
    assert found == pytest.approx(theirs, rel=1e-9)


def test_inverse_sqrt_is_the_papers() -> None:
    paper = [min((t or 1) ** -0.5, t * WARM**-1.5) * WARM**0.5 for t in range(STEPS)]
    assert ours(InverseSqrt(warmup=WARM)) == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_rate_is_scaled_by_the_batch_over_the_base(scale, factor) -> None:
    assert ours(Constant(scale=scale, base_batch=256 if scale != "none" else None)) == [factor] * STEPS


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Constant(scale="linear"), "schedule.base_batch=256"),
        (lambda: Constant(base_batch=256), "nothing is scaled by it"),
        (lambda: Constant(warmup_from=0.5), "there is no warm-up"),
        (lambda: Constant(warmup=2.5), "whole number of steps"),
        (lambda: Step(every=2.5), "schedule.every=2.5: must be a whole number"),
        (lambda: Constant(warmup=41).check(HORIZON), "longer than the run, which has 40"),
        (lambda: Constant(warmup=11, unit="epochs").check(HORIZON), "11 epochs, 44 steps, is longer"),
        (lambda: Step(every=0.1, unit="epochs").check(HORIZON), "less than a step"),
        (lambda: OneCycle().check(Horizon(3, 1, 1)), "too short"),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule(make, said) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_rates_are_scaled_within_a_step_and_given_back() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(RuntimeError), scaled([optimizer], 0.5):
        assert optimizer.param_groups[0]["lr"] == 0.05
        raise RuntimeError
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_rate_is_told_at_its_corners() -> None:
    assert [*Rate(Cosine(warmup=WARM), HORIZON).points()] == [0, WARM, (WARM + STEPS) // 2, STEPS - 1]


class Given(Schedule):
    def __init__(self, made: object) -> None:
        self.made = made

    def factor(self, step: int, horizon: Horizon) -> Any:
        return self.made


@pytest.mark.parametrize("made", [None, "a", -0.5, math.nan, math.inf, 1j])
def test_a_factor_that_is_no_rate_is_refused(made: object) -> None:
    with pytest.raises(ConfigError, match=r"^schedule: Given\.factor of step 0 is .*; must be a finite number of 0 or"):
        Rate(Given(made), Horizon(1, 1, 1)).factor(3)
    assert Rate(Given(torch.tensor(0.5)), Horizon(1, 1, 1)).factor(0) == 0.5
