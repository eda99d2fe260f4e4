"""SPARTA against explicit loops over the entries that are drawn, in plain torch."""

import numpy as np
import pytest
import torch
from oracles import ROUNDING, Case, TwoDtypes, adam, identical, mlp, momentum, serial
from replicas import Life, Replica, flat, live, saved_after, stacked
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.strategies.core.cost import World
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.strategies.sync.sparta import Sparta, drawn

pytestmark = pytest.mark.dist
FLOAT = 4  # bytes
ENTRIES = sum(parameter.numel() for parameter in mlp().parameters())


def sparta(case: Case, share: float, period: int, seed: int) -> list[Tensor]:
    """[replicas, entries] after each step."""
    replicas = [Replica(case, 0, rank) for rank in range(len(case.sizes[0]))]
    trajectory = []
    for t in range(len(case.sizes)):
        for replica in replicas:
            replica.gradient(t)
            replica.step()
        rows = torch.stack([replica.vector for replica in replicas])
        if (t + 1) % period == 0:
            rng = np.random.default_rng((seed, (t + 1) // period - 1))
            n = rows.shape[1]
            for j in rng.choice(n, max(1, round(share * n)), replace=False, shuffle=False):
                rows[:, j] = rows[:, j].mean()
            for replica, values in zip(replicas, rows, strict=True):
                replica.vector = values
        trajectory.append(rows)
    return trajectory


@pytest.mark.parametrize(
    ("n", "share", "period", "optimizer"), [(2, 0.3, 1, momentum), (3, 0.5, 2, adam), (4, 1e-9, 1, momentum)]
)
def test_every_step_is_a_step_of_its_own_and_then_the_mean_of_what_is_drawn(fabric, n, share, period, optimizer):
    case = Case([[3] * n, [2] * n, [1] * (n - 1) + [0], [3] * n, [2] * n], optimizer=optimizer)
    results = fabric(n, live, Life(Sparta(share, period, seed=7), case))
    expected = sparta(case, share, period, seed=7)
    for t in range(len(case.sizes)):
        assert torch.allclose(stacked(results, t), expected[t], rtol=0, atol=ROUNDING)
    for result in results:
        assert torch.allclose(flat(result["weights"]), expected[-1].mean(0), rtol=0, atol=ROUNDING)
        assert identical(result["result"], results[0]["weights"])


@pytest.mark.parametrize("period", [1, 3])
def test_all_of_the_weights_are_local_sgd_bit_for_bit(virtual_workers, period):
    case = Case([[3, 3]] * 7, model=mlp)
    everything, averaged = (
        virtual_workers(2, live, Life(sync, case)) for sync in (Sparta(1.0, period), LocalSGD(period))
    )
    for t in range(7):
        assert torch.equal(stacked(everything, t), stacked(averaged, t))


def test_other_shares_periods_and_seeds_train_something_else():
    case = Case([[2] * 3] * 4)
    ends = [sparta(case, *knobs)[-1] for knobs in [(0.3, 1, 0), (0.5, 1, 0), (0.3, 2, 0), (0.3, 1, 1)]]
    assert not any(torch.allclose(a, b, atol=1e-6) for i, a in enumerate(ends) for b in ends[:i])


def test_without_gradients_the_mean_stays_and_what_is_drawn_is_the_same_on_all(virtual_workers):
    """The start is alike, so one step apart comes first."""
    case = Case([[3] * 4, [0] * 4], optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    results = virtual_workers(4, live, Life(Sparta(0.25, 2), case))
    apart, mixed = stacked(results, 0), stacked(results, 1)
    assert torch.allclose(mixed.mean(0), apart.mean(0), rtol=0, atol=1e-15)
    alike = (mixed == mixed[0]).all(0)
    drawn_now = torch.zeros(ENTRIES, dtype=torch.bool).index_fill_(0, drawn(ENTRIES, round(ENTRIES / 4), 0, 0), True)
    assert torch.equal(alike, drawn_now | (apart == apart[0]).all(0))
    assert torch.equal(mixed[:, ~alike], apart[:, ~alike])


@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 3), (7, 7), (100_000, 5)])
def test_what_is_drawn_is_in_order_none_twice_and_another_in_each_round(n, k):
    first, second = drawn(n, k, 0, 0), drawn(n, k, 0, 1)
    assert len(first) == k and int(first[0]) >= 0 and int(first[-1]) < n
    assert bool((first.diff() > 0).all())
    assert torch.equal(first, drawn(n, k, 0, 0))
    assert k == n or not torch.equal(first, second)


@pytest.mark.parametrize(("replicas", "share", "period"), [(2, 0.1, 1), (3, 0.5, 2), (2, 1e-9, 1), (1, 0.5, 1)])
def test_stated_cost_and_buffers_are_those_of_a_step(virtual_workers, replicas, share, period):
    steps, sync = 4, Sparta(share, period)
    cost = sync.cost(list(mlp().parameters()), World(replicas))
    assert cost.worker == {
        "all_reduce": pytest.approx(2 * (replicas - 1) / replicas * FLOAT * max(1, round(share * ENTRIES)) / period)
    }
    for result in virtual_workers(replicas, live, Life(sync, Case([[2] * replicas] * steps, model=mlp))):
        assert result["ledger"].get("all_reduce", 0) == pytest.approx(cost.worker["all_reduce"] * steps, abs=0.5)
        assert result["buffers"] == cost.buffers


def test_one_replica_is_serial_training_bit_for_bit_and_sends_nothing(virtual_workers):
    case = Case([[4], [3], [1]], model=mlp)
    [result] = virtual_workers(1, live, Life(Sparta(), case))
    assert identical(result["weights"], serial(case))
    assert result["ledger"] == {}


def test_replicas_go_on_where_they_were_saved_inside_a_period(fabric):
    case = Case([[3] * 3] * 7, model=mlp)
    straight = fabric(3, live, Life(Sparta(0.3, 2), case))
    resumed = fabric(3, live, Life(Sparta(0.3, 2), case, saved=saved_after(straight, 3), start=3))
    for one, other in zip(straight, resumed, strict=True):
        assert all(identical(a, b) for a, b in zip(one["trajectory"][3:], other["trajectory"], strict=True))
        assert identical(one["weights"], other["weights"])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("sync.share=0", "sync.share=0: must be greater than 0"),
        ("sync.share=1.5", "sync.share=1.5: must be less than or equal to 1"),
        ("sync.period=0", "sync.period=0: must be greater than or equal to 1"),
    ],
)
def test_a_knob_out_of_its_range_is_refused(override, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare(["sync=sparta", override]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"sync: .*sync=bsp"):
        Sparta().cost(list(TwoDtypes().parameters()), World(2))
