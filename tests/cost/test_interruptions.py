"""Checkpoints on machines that are taken away: Daly's own figures, a simulation, and the best interval by search."""

import math
import random

import pytest

from paceline.cost.interruptions import (
    daly,
    expected_interruptions,
    expected_time,
    goodput,
    goodput_alone,
    pieces,
    young,
)
from paceline.cost.rules import CostError

# hours: mean time between interruptions, checkpoint, restart, work (of many pieces: whole ones cost little)
SYSTEMS = [
    (24.0, 5 / 60, 10 / 60, 500.0),
    (6.0, 5 / 60, 10 / 60, 500.0),
    (0.25, 5 / 60, 10 / 60, 20.0),
    (2.0, 0.5, 0.0, 90.0),
]

TRIALS = 500


@pytest.mark.parametrize(("between", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_daly_is_what_his_figures_3_to_5_say(between: float, minutes: float) -> None:
    """For a checkpoint of 5 minutes he gives 117, 57 and 9.1 minutes."""
    assert round(60 * daly(5 / 60, between), 1 if minutes < 10 else None) == minutes


def test_young_is_the_first_order_of_daly() -> None:
    assert young(5 / 60, 24) == pytest.approx(2.0)
    for checkpoint in (1e-4, 1e-6):
        assert daly(checkpoint, 1.0) == pytest.approx(young(checkpoint, 1.0), rel=2 * math.sqrt(checkpoint))


def test_where_a_checkpoint_takes_two_mean_times_daly_is_the_mean_time() -> None:
    assert daly(2.0, 1.0) == daly(5.0, 1.0) == 1.0


def simulated(work: float, interval: float, checkpoint: float, restart: float, between: float, draws: random.Random):
    """Hours that one training takes, and how often it is interrupted: a clock, and exponential times."""
    number = pieces(work, interval)
    clock, done, interrupted = 0.0, 0, 0
    left = draws.expovariate(1 / between)  # until the next interruption
    needs = work / number + checkpoint
    while done < number:
        if left >= needs:
            clock, left = clock + needs, left - needs
            done, needs = done + 1, work / number + checkpoint
            continue
        clock += left
        while True:  # restarts, until one is not interrupted
            interrupted += 1
            left = draws.expovariate(1 / between)
            if left >= restart:
                break
            clock += left
        clock, left = clock + restart, left - restart
        needs = work / number + checkpoint
    return clock, interrupted


@pytest.mark.parametrize(("between", "checkpoint", "restart", "work"), SYSTEMS)
@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_a_simulation_takes_the_expected_time_with_the_expected_interruptions(
    between: float, checkpoint: float, restart: float, work: float, factor: float
) -> None:
    """The mean of so many trainings is within four standard errors."""
    draws = random.Random(7)
    interval = factor * daly(checkpoint, between)
    trials = [simulated(work, interval, checkpoint, restart, between, draws) for _ in range(TRIALS)]
    expected = expected_time(work, interval, checkpoint, restart, between)
    for values, value in (
        ([clock for clock, _ in trials], expected),
        ([float(count) for _, count in trials], expected_interruptions(expected, between)),
    ):
        mean = sum(values) / len(values)
        error = math.sqrt(sum((each - mean) ** 2 for each in values) / (len(values) - 1) / len(values))
        assert abs(mean - value) < 4 * error and error < 0.03 * value


@pytest.mark.parametrize(("between", "checkpoint", "restart", "work"), SYSTEMS)
def test_no_number_of_checkpoints_is_much_better_than_dalys(
    between: float, checkpoint: float, restart: float, work: float
) -> None:
    def time(interval: float) -> float:
        return expected_time(work, interval, checkpoint, restart, between)

    best = min(time(work / number) for number in range(pieces(work, 10 * between), 3000))
    assert best <= time(daly(checkpoint, between)) <= 1.001 * best
    assert time(daly(checkpoint, between)) <= time(young(checkpoint, between)) * 1.0001
    assert time(0.2 * daly(checkpoint, between)) > 1.1 * best  # or the interval would not matter


def test_without_interruptions_there_are_checkpoints_alone() -> None:
    assert expected_time(10.0, 2.0, 0.1, 1.0, 1e7) == pytest.approx(10.5, rel=1e-5)


@pytest.mark.parametrize(("work", "interval", "number"), [(0.3, 0.1, 3), (10, 3, 4), (1, 5, 1), (500, 2, 250)])
def test_pieces_are_equal_and_at_most_an_interval(work: float, interval: float, number: int) -> None:
    assert pieces(work, interval) == number


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((500.0, 10.0, 0.1, 0.1, 0.001), "training would never end"),
        ((500.0, 0.0005, 0.1, 9000, 0.001), "training would never end"),
        ((0.0, 1.0, 0.1, 0.1, 1.0), "work=0"),
        ((1.0, 1.0, 0.0, 0.1, 1.0), "checkpoint=0"),
        ((1.0, 1.0, 0.1, -0.1, 1.0), "restart=-0.1"),
        ((1.0, 1.0, 0.1, 0.1, math.nan), "between=nan"),
    ],
)
def test_what_would_never_end_and_what_cannot_be_are_refused(values: tuple[float, ...], words: str) -> None:
    with pytest.raises(CostError, match=words):
        expected_time(*values)


# -- goodput


@pytest.mark.parametrize(("checkpoint", "restart", "between", "step"), [(0.01, 0.02, 1.0, 0.0), (0.01, 0.3, 1.0, 0.5)])
def test_goodput_is_the_work_over_the_time_of_a_simulation(
    checkpoint: float, restart: float, between: float, step: float
) -> None:
    """A checkpoint follows each step of 0.5 hours, which is longer than Young's interval."""
    interval, draws = max(young(checkpoint, between), step), random.Random(1)
    took, _ = simulated(4000 * interval, interval, checkpoint, restart, between, draws)
    assert goodput(checkpoint, restart, between, step) == pytest.approx(4000 * interval / took, rel=0.03)


def test_goodput_of_rare_failures_is_that_of_first_order() -> None:
    """1 - C / T - T / 2M - R / M, with T = sqrt(2 C M)."""
    checkpoint, restart, between = 1e-4, 2e-3, 10.0
    interval = young(checkpoint, between)
    first_order = 1 - checkpoint / interval - interval / (2 * between) - restart / between
    assert goodput(checkpoint, restart, between, 0.0) == pytest.approx(first_order, abs=3e-5)


def test_goodput_of_a_worker_alone_is_the_work_over_the_time_of_a_simulation() -> None:
    took, _ = simulated(20_000 * 0.1, 0.1, 0.0, 0.2, 1.0, random.Random(2))
    assert goodput_alone(0.2, 1.0, 0.1) == pytest.approx(2000 / took, rel=0.02)


def test_a_checkpoint_of_no_time_to_speak_of_and_steps_of_a_millisecond_have_a_goodput() -> None:
    assert goodput(1e-12, 0.0, 100.0, 1e-7) == goodput(1e-6, 0.0, 100.0, 1e-7) < 1
    assert goodput_alone(0.0, 100.0, 1e-7) == pytest.approx(1.0)


def test_a_goodput_of_nothing_is_refused() -> None:
    with pytest.raises(CostError, match="training would never end"):
        goodput(1.0, 1.0, 0.1, 0.0)
    with pytest.raises(CostError, match="training would never end"):
        goodput_alone(1.0, 0.01, 0.0001)
