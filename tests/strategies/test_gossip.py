"""Gossip against W <- a step(W), with matrices written by hand, in plain torch."""

import numpy as np
import pytest
import torch
from oracles import ROUNDING, Case, TwoDtypes, adam, identical, mlp, momentum, serial
from replicas import Life, Replica, flat, live, saved_after, stacked
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.strategies.core.cost import World
from paceline.strategies.sync.gossip import Gossip

pytestmark = pytest.mark.dist
APART = [0, 1, 2, 3, 4]  # replicas that start apart
TOPOLOGIES = ["ring", "exponential", "one_peer_exponential", "matching"]
FLOAT = 4  # bytes


def matrix(topology: str, n: int, r: int, seed: int = 0) -> Tensor:
    """a, by the definitions."""
    a = torch.eye(n, dtype=torch.float64)
    tau = int(np.ceil(np.log2(n)))
    match topology:
        case "ring":
            for i in range(n):
                a[i, (i + 1) % n] = a[i, (i - 1) % n] = 1
        case "exponential":
            for i in range(n):
                for k in range(tau):
                    a[i, (i - 2**k) % n] = 1
        case "one_peer_exponential":
            for i in range(n):
                a[i, (i - 2 ** (r % tau)) % n] = 1
        case "matching":
            order = np.random.default_rng((seed, r)).permutation(n)
            for i, j in zip(order[0::2], order[1::2], strict=False):
                a[i, j] = a[j, i] = 1
    return a / a.sum(1, keepdim=True)


def gossip(case: Case, seeds: list[int], topology: str, period: int = 1, seed: int = 0) -> list[Tensor]:
    """[replicas, entries] after each step."""
    n = len(case.sizes[0])
    replicas = [Replica(case, seeds[i], i) for i in range(n)]
    trajectory = []
    for t in range(len(case.sizes)):
        for replica in replicas:
            replica.gradient(t)
            replica.step()
        rows = torch.stack([replica.vector for replica in replicas])
        if (t + 1) % period == 0:
            rows = matrix(topology, n, (t + 1) // period - 1, seed).to(rows) @ rows
            for replica, values in zip(replicas, rows, strict=True):
                replica.vector = values
        trajectory.append(rows)
    return trajectory


# -- what it computes


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_one_replica_is_serial_training_bit_for_bit_and_sends_nothing(fabric, topology):
    case = Case([[4], [3], [1]], model=mlp)
    [result] = fabric(1, live, Life(Gossip(topology), case))
    assert identical(result["weights"], serial(case))
    assert identical(result["result"], result["weights"])
    assert result["ledger"] == {}


@pytest.mark.parametrize(
    ("topology", "n", "period", "optimizer"),
    [
        ("ring", 2, 1, momentum),
        ("ring", 4, 2, adam),
        ("exponential", 5, 1, momentum),
        ("one_peer_exponential", 3, 1, adam),
        ("one_peer_exponential", 4, 2, momentum),
        ("matching", 3, 1, momentum),
        ("matching", 4, 2, adam),
    ],
)
def test_every_step_of_every_replica_is_a_step_of_its_own_and_then_the_matrix(fabric, topology, n, period, optimizer):
    case = Case([[3] * n, [2] * n, [1] * (n - 1) + [0], [3] * n, [2] * n], optimizer=optimizer)
    results = fabric(n, live, Life(Gossip(topology, period, seed=7), case, seeds=APART))
    expected = gossip(case, APART, topology, period, seed=7)
    for t in range(len(case.sizes)):
        assert torch.allclose(stacked(results, t), expected[t], rtol=0, atol=ROUNDING)
    mean = expected[-1].mean(0)
    for result in results:
        assert torch.allclose(flat(result["weights"]), mean, rtol=0, atol=ROUNDING)


def test_two_float32_replicas_on_a_ring_take_the_mean_bit_for_bit(fabric):
    case = Case([[3, 3]] * 3, model=mlp)
    results = fabric(2, live, Life(Gossip(), case, seeds=APART))
    assert torch.equal(stacked(results, 2), gossip(case, APART, "ring")[2])
    assert identical(results[0]["weights"], results[1]["weights"])


def test_other_topologies_periods_and_seeds_train_something_else():
    case = Case([[2] * 5] * 4)
    kinds = [("ring", 1, 0), ("exponential", 1, 0), ("one_peer_exponential", 1, 0), ("matching", 1, 0)]
    kinds += [("ring", 2, 0), ("matching", 1, 1)]
    ends = [gossip(case, APART, *kind)[-1] for kind in kinds]
    assert not any(torch.allclose(a, b, atol=1e-6) for i, a in enumerate(ends) for b in ends[:i])


# -- what mixing does


@pytest.mark.parametrize(
    ("topology", "n"), [("ring", 5), ("exponential", 5), ("one_peer_exponential", 4), ("matching", 5)]
)
def test_without_gradients_the_mean_stays_and_the_variance_shrinks_by_lambda_2_squared(fabric, topology, n):
    case = Case([[0] * n] * 6)
    results = fabric(n, live, Life(Gossip(topology), case, seeds=APART))
    rows = torch.stack([flat(dict(case.start(seed).named_parameters())).detach() for seed in APART[:n]])
    mean = rows.mean(0)
    for t in range(6):
        lambda_2 = float(torch.linalg.svdvals(matrix(topology, n, t))[1])
        mixed = stacked(results, t)
        assert torch.allclose(mixed.mean(0), mean, rtol=0, atol=1e-15 * (t + 1))
        variances = [float((x - mean).square().sum()) for x in (rows, mixed)]
        assert variances[1] <= lambda_2**2 * variances[0] * (1 + 1e-9) + 1e-28
        rows = mixed
    assert torch.allclose(flat(results[-1]["weights"]), mean, rtol=0, atol=1e-14)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_consensus_is_the_mean_and_looking_changes_nothing(fabric, n):
    case = Case([[2] * n] * 4)
    looked = fabric(n, live, Life(Gossip(period=3), case, seeds=APART, looks=True))
    apart = fabric(n, live, Life(Gossip(period=3), case, seeds=APART))
    for t in range(4):
        assert torch.equal(stacked(looked, t), stacked(apart, t))
        for result in looked:
            assert torch.allclose(flat(result["seen"][t]), stacked(apart, t).mean(0), rtol=0, atol=1e-15)
    assert all(identical(result["result"], looked[0]["weights"]) for result in looked)
    assert looked[0]["ledger"] == apart[0]["ledger"]


# -- cost, state, refusals


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize(("topology", "n"), [(t, n) for t in TOPOLOGIES for n in (2, 3)] + [("exponential", 5)])
def test_stated_cost_is_what_a_step_sends(fabric, topology, n, period):
    steps = 6
    sync = Gossip(topology, period, seed=3)
    results = fabric(n, live, Life(sync, Case([[1] * n] * steps, model=mlp)))
    entries = sum(parameter.numel() for parameter in mlp().parameters())
    others = [matrix(topology, n, r, 3) * (1 - torch.eye(n)) for r in range(steps // period)]
    for rank, result in enumerate(results):
        sent = sum(int((a[:, rank] > 0).sum()) for a in others) * FLOAT * entries
        assert result["ledger"].get("send", 0) == sent
        assert result["ledger"].keys() <= {"send"}
    cost = sync.cost(list(mlp().parameters()), World(n))
    assert sum(result["ledger"].get("send", 0) for result in results) == pytest.approx(n * steps * cost.worker["send"])
    assert all(result["buffers"] == cost.buffers for result in results)


def test_stated_cost_of_one_worker_is_nothing():
    assert Gossip().cost(list(mlp().parameters()), World(1)).worker == {"send": 0}
    assert Gossip().cost(list(mlp().parameters()), World(1)).buffers == 0


@pytest.mark.parametrize("topology", ["one_peer_exponential", "matching"])
def test_replicas_go_on_where_they_were_saved_inside_a_period(fabric, topology):
    case = Case([[3] * 3] * 7, model=mlp)
    straight = fabric(3, live, Life(Gossip(topology, period=2), case, seeds=APART))
    resumed = fabric(3, live, Life(Gossip(topology, period=2), case, saved=saved_after(straight, 3), start=3))
    for one, other in zip(straight, resumed, strict=True):
        assert all(identical(a, b) for a, b in zip(one["trajectory"][3:], other["trajectory"], strict=True))
        assert identical(one["weights"], other["weights"])


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"sync=bsp") as caught:
        Gossip().cost(list(TwoDtypes().parameters()), World(2))
    assert caught.value.exit_code == 2


# -- deaths


def with_a_death(case: Case, dead: int, at: int, topology: str) -> list[Tensor]:
    """Rows of all after each step; `dead` mixes in step `at` for the last time: later, others keep its weight."""
    n = len(case.sizes[0])
    replicas = [Replica(case, APART[i], i) for i in range(n)]
    trajectory = []
    for t in range(len(case.sizes)):
        a = matrix(topology, n, t)
        for i in range(n):
            if t > at and i != dead:
                a[i, i] += a[i, dead]
                a[i, dead] = 0
        for replica in replicas:
            replica.gradient(t)
            replica.step()
        rows = a @ torch.stack([replica.vector for replica in replicas])
        for replica, values in zip(replicas, rows, strict=True):
            replica.vector = values
        trajectory.append(rows)
    return trajectory


@pytest.mark.fault
@pytest.mark.parametrize(("topology", "n"), [("ring", 4), ("ring", 2), ("one_peer_exponential", 4), ("matching", 3)])
def test_the_living_go_on_without_a_dead_neighbour_and_keep_its_weight(workers, topology, n):
    case = Case([[2] * n] * 6)
    results = workers(n, live, Life(Gossip(topology), case, seeds=APART, dies={1: 2}, looks=True), lost=[1])
    expected = with_a_death(case, 1, 2, topology)
    living = [rank for rank in range(n) if rank != 1]
    for t in range(6):
        for rank in living:
            assert torch.allclose(flat(results[rank]["trajectory"][t]), expected[t][rank], rtol=0, atol=ROUNDING)
    mean = expected[-1][living].mean(0)
    assert all(torch.allclose(flat(results[rank]["weights"]), mean, rtol=0, atol=ROUNDING) for rank in living)
    assert results[0]["report"]["lost"] == [1]
