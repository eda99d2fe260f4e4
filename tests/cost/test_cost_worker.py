"""A worker's step on a machine that was measured, and the slowest of several."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.cost.alpha_beta import AlphaBeta
from paceline.cost.calibration import Calibration, Disk, MeasuredOperation
from paceline.cost.expected import expected_maximum, expected_order
from paceline.cost.kernels import Kernel, KernelRates, KernelTable
from paceline.cost.rules import CostError
from paceline.cost.transfer import Transfer
from paceline.cost.worker import FORMULAS, HostProcesses, StepWork, seconds, taking_turns

COSTS = {"module": 0.0, "graph": 0.0, "node": 0.0, "view": 0.0, "view_back": 0.0}
COSTS |= {"parameter": 1e-4, "stepped": 2e-4, "step": 1e-3}
RATES = KernelRates(1, 2, {"mul": KernelTable(((1.0, 1e-6), (1e6, 1.0)))}, COSTS)
FOUR = Calibration(
    "",
    "lab",
    "",
    4,
    {},
    0.0,
    [RATES],
    [MeasuredOperation("all_reduce", 2, AlphaBeta(1e-3, 1e-6, 0.0))],
    Disk(1.0, 1.0),
    None,
)
SECOND = Kernel("mul", (1e6,))
WORK = StepWork(forward=(SECOND,), backward=(SECOND, SECOND), modules=0, optimizer=(SECOND,), stepped=5)


def test_a_step_is_its_operators_and_what_it_takes_beside() -> None:
    found = seconds(WORK, HostProcesses(1, 0, 1), FOUR)
    assert found == pytest.approx({"compute": 3.0, "optimizer": 1.001, "input": 0.0, "host": 1e-3})
    assert found.keys() <= FORMULAS.keys()


def test_workers_without_a_core_of_their_own_take_turns() -> None:
    one, eight = (seconds(WORK, HostProcesses(workers, 0, 1), FOUR) for workers in (4, 8))
    assert all(eight[name] == pytest.approx(2 * part) for name, part in one.items())


@pytest.mark.parametrize(
    ("alike", "cores", "expected"),
    [
        (1, 2, 5.0),  # never more than two at once
        (1, 1, 3 + 2 * 1 + 1),  # one second of two, which share a core; one second of nobody
        (2, 1, 2 * 3 + 4 * 1 + 1),  # two of each
        (2, 2, 3 + 2 * 1 + 1),
        (0.5, 1, 5.0),
    ],
)
def test_a_schedule_goes_on_more_slowly_while_more_compute_than_there_are_cores(
    alike: float, cores: int, expected: float
) -> None:
    assert taking_turns([(0.0, 2.0), (1.0, 3.0), (4.0, 5.0)], 5.0, alike, cores) == pytest.approx(expected)


def test_an_exchange_is_hidden_behind_backward_only_where_cores_are_idle() -> None:
    sums = [Transfer("all_reduce", 2, 1e6, 2.0)]  # 2.002 s, as long as backward
    busy, idle = (
        seconds(WORK, HostProcesses(2, 0, threads), FOUR, between=sums)["communication"] for threads in (2, 1)
    )
    assert busy == pytest.approx(2.002)
    assert idle == pytest.approx(0.1 * 2.002)  # the last bucket


def test_beside_accumulated_micro_batches_only_the_last_backward_pass_hides_an_exchange() -> None:
    sums = [Transfer("all_reduce", 2, 1e6, 2.0)]
    four = replace(WORK, accumulated=4)  # three seconds for all of them
    assert seconds(four, HostProcesses(2, 0, 1), FOUR, between=sums)["communication"] == pytest.approx(2.002 - 2 / 4)


def test_gradients_are_handed_on_and_copied_as_often_as_they_travel() -> None:
    hooked = seconds(replace(WORK, hooked=10), HostProcesses(1, 0, 1), FOUR)["communication"]
    assert hooked == pytest.approx(10 * 1e-4)
    alone = [Transfer("all_reduce", 1, 1e6, every=4, kernels=(SECOND,))]  # among one worker: no message
    moved = seconds(replace(WORK, hooked=1), HostProcesses(1, 0, 1), FOUR, between=alone)["communication"]
    assert moved == pytest.approx(1e-4 + 1 / 4)


def test_a_transfer_takes_the_time_of_its_messages_as_often_as_it_happens() -> None:
    def of(**what: Any) -> float:
        sent = [Transfer("all_reduce", 2, 1e6, **what)]
        return seconds(WORK, HostProcesses(2, 0, 2), FOUR, between=sent).get("communication", 0.0)

    assert of() == pytest.approx(1.001)
    assert of(every=4, times=2) == pytest.approx(1.001 / 2)
    assert of(messages=((5e5, 3), (0.0, 2))) == pytest.approx(3 * 0.501 + 2 * 0.001)
    assert of(timed=False) == 0.0


@pytest.mark.parametrize(
    ("kind", "knobs", "draw"),
    [
        ("exponential", {"base": 1.0, "scale": 0.5}, lambda rng, n: 1 + 0.5 * rng.standard_exponential(n)),
        ("exponential", {"base": 0.2, "scale": 0.5}, lambda rng, n: 0.2 + 0.5 * rng.standard_exponential(n)),
        ("lognormal", {"sigma": 0.5}, lambda rng, n: np.exp(0.5 * rng.standard_normal(n))),
        ("pareto", {"alpha": 4.0}, lambda rng, n: 1 + rng.pareto(4.0, n)),
    ],
)
@pytest.mark.parametrize("workers", [1, 4])
def test_the_slowest_is_as_slow_as_drawn_ones_are(kind: str, knobs: dict[str, Any], draw: Any, workers: int) -> None:
    rng = np.random.default_rng(3)
    for least in (0.0, 1.0):
        drawn = np.maximum(draw(rng, (200_000, workers)).max(axis=1), least)
        error = drawn.std() / len(drawn) ** 0.5
        assert expected_maximum(kind, knobs, workers, least) == pytest.approx(drawn.mean(), abs=6 * error)


def test_what_has_no_distribution_or_no_mean_is_refused() -> None:
    assert expected_maximum("one_slow", {"worker": 1, "factor": 4.0}, 2) == 4.0
    assert expected_maximum("one_slow", {"worker": 3, "factor": 4.0}, 2) == 1.0
    with pytest.raises(CostError, match="infinite"):
        expected_maximum("pareto", {"alpha": 1.0}, 2)
    with pytest.raises(CostError, match="stragglers=mine"):
        expected_maximum("mine", {}, 2)


@pytest.mark.parametrize(
    ("kind", "knobs", "draw"),
    [
        ("exponential", {"base": 0.5, "scale": 1.0}, lambda rng, n: 0.5 + rng.standard_exponential(n)),
        ("lognormal", {"sigma": 0.5}, lambda rng, n: rng.lognormal(0.0, 0.5, n)),
        ("pareto", {"alpha": 3.0}, lambda rng, n: 1 + rng.pareto(3.0, n)),
    ],
)
def test_the_k_th_fastest_of_n_is_as_slow_as_drawn_ones_are_on_average(kind: str, knobs: Any, draw: Any) -> None:
    drawn = np.sort(draw(np.random.default_rng(0), (100_000, 4)), axis=1)
    for fastest in (1, 3):
        for least in (0.0, 1.0):
            expected = float(np.maximum(drawn, least)[:, fastest - 1].mean())
            assert expected_order(kind, knobs, 4, fastest, least) == pytest.approx(expected, rel=0.01)
    assert expected_order(kind, knobs, 4, 4) == expected_maximum(kind, knobs, 4)


def test_one_slow_worker_is_waited_for_only_where_all_are() -> None:
    slow = {"worker": 1, "factor": 3.0}
    assert [expected_order("one_slow", slow, 3, fastest) for fastest in (1, 2, 3)] == [1.0, 1.0, 3.0]
