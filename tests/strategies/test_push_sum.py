"""Stochastic gradient push against its recursion in plain torch."""

import numpy as np
import pytest
import torch
from oracles import ROUNDING, Case, TwoDtypes, adam, identical, mlp, momentum, serial
from replicas import Life, Replica, flat, live, saved_after, stacked
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.strategies.core.cost import World
from paceline.strategies.sync.gossip import Gossip
from paceline.strategies.sync.push_sum import WEIGHT, PushSum

pytestmark = pytest.mark.dist
APART = [0, 1, 2, 3, 4]  # replicas that start apart
TOPOLOGIES = ["exponential", "one_peer_exponential", "one_peer_and_random"]
FLOAT = 4  # bytes


def matrix(topology: str, n: int, r: int, seed: int = 0) -> Tensor:
    """p, by the definitions: column i is how i shares itself out."""
    p = torch.eye(n, dtype=torch.float64)
    tau = int(np.ceil(np.log2(n)))
    match topology:
        case "exponential":
            for i in range(n):
                for k in range(tau):
                    p[(i + 2**k) % n, i] = 1
        case "one_peer_exponential":
            for i in range(n):
                p[(i + 2 ** (r % tau)) % n, i] = 1
        case "one_peer_and_random":
            fixed = 2 ** (r % tau)
            others = [hop for hop in range(1, n) if hop != fixed]
            drawn = np.random.default_rng((seed, r)).integers(1, n - 1, size=n) if others else [0] * n
            for i in range(n):
                for hop in [fixed, *([others[drawn[i] - 1]] if others else [])]:
                    p[(i + hop) % n, i] = 1
    return p / p.sum(0)


def push_sum(
    case: Case, seeds: list[int], topology: str, period: int = 1, seed: int = 0, at: str = "z"
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """z [replicas, entries], w [replicas], x [replicas, entries] after each step; gradients `at` z (or, wrongly, x)."""
    n = len(case.sizes[0])
    replicas = [Replica(case, seeds[i], i) for i in range(n)]
    x = torch.stack([replica.vector for replica in replicas])
    w = torch.ones(n, dtype=torch.float64)
    z, zs, ws, xs = x, [], [], []
    for t in range(len(case.sizes)):
        rows = []
        for i, replica in enumerate(replicas):
            replica.vector = z[i] if at == "z" else x[i]
            replica.gradient(t)
            replica.vector = x[i]
            replica.step()
            rows.append(replica.vector)
        x = torch.stack(rows)
        if (t + 1) % period == 0:
            p = matrix(topology, n, (t + 1) // period - 1, seed)
            x, w = p.to(x) @ x, p @ w
        z = (x / w[:, None]).to(x)
        zs.append(z)
        ws.append(w)
        xs.append(x)
    return zs, ws, xs


def weights_w(results, t: int) -> Tensor:
    return torch.cat([result["states"][t]["w"] for result in results])


# -- what it computes


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_one_replica_is_serial_training_bit_for_bit_and_sends_nothing(fabric, topology):
    case = Case([[4], [3], [1]], model=mlp)
    [result] = fabric(1, live, Life(PushSum(topology), case))
    assert identical(result["weights"], serial(case))
    assert identical(result["result"], result["weights"])
    assert result["ledger"] == {}


@pytest.mark.parametrize(
    ("topology", "n", "period", "optimizer"),
    [
        ("exponential", 5, 1, momentum),
        ("one_peer_exponential", 4, 1, adam),
        ("one_peer_and_random", 3, 1, momentum),
        ("one_peer_and_random", 5, 1, adam),
        ("one_peer_and_random", 4, 2, momentum),
    ],
)
def test_every_step_follows_the_papers_recursion(fabric, topology, n, period, optimizer):
    case = Case([[3] * n, [2] * n, [1] * (n - 1) + [0], [3] * n, [2] * n], optimizer=optimizer)
    results = fabric(n, live, Life(PushSum(topology, period, seed=7), case, seeds=APART))
    zs, ws, xs = push_sum(case, APART, topology, period, seed=7)
    for t in range(len(case.sizes)):
        assert torch.allclose(weights_w(results, t), ws[t], rtol=0, atol=1e-14)
        assert torch.allclose(stacked(results, t), zs[t], rtol=0, atol=ROUNDING)
    mean = xs[-1].sum(0) / ws[-1].sum()
    for result in results:
        assert torch.allclose(flat(result["weights"]), mean, rtol=0, atol=ROUNDING)


def test_gradients_at_x_instead_of_z_would_be_another_algorithm():
    """What the test above would find."""
    case = Case([[2] * 5] * 4)
    right, wrong = (push_sum(case, APART, "one_peer_and_random", at=at)[0][-1] for at in ("z", "x"))
    assert float((right - wrong).abs().max()) > 1e3 * ROUNDING


@pytest.mark.parametrize("n", [2, 3, 4])
def test_on_the_one_peer_graph_it_is_gossip_bit_for_bit(fabric, n):
    """p is doubly stochastic there, so that all w stay 1; halves are exact."""
    case = Case([[3] * n] * 4, model=mlp)
    pushed = fabric(n, live, Life(PushSum("one_peer_exponential"), case, seeds=APART))
    mixed = fabric(n, live, Life(Gossip("one_peer_exponential"), case, seeds=APART))
    for t in range(4):
        assert torch.equal(stacked(pushed, t), stacked(mixed, t))
        assert weights_w(pushed, t).tolist() == [1.0] * n


# -- what is conserved


@pytest.mark.parametrize(
    ("topology", "n"), [("one_peer_and_random", 5), ("exponential", 5), ("one_peer_and_random", 2)]
)
def test_push_sum_weights_add_to_n_and_the_mass_stays_at_every_step(fabric, topology, n):
    case = Case([[0] * n] * 12)
    results = fabric(n, live, Life(PushSum(topology), case, seeds=APART))
    rows = torch.stack([flat(dict(case.start(seed).named_parameters())).detach() for seed in APART[:n]])
    apart = []
    for t in range(12):
        w, z = weights_w(results, t), stacked(results, t)
        assert float(w.sum()) == pytest.approx(n, rel=0, abs=1e-14 * (t + 1))
        assert bool((w > 0).all())
        assert torch.allclose((w[:, None] * z).sum(0), rows.sum(0), rtol=0, atol=1e-13)
        assert torch.equal(z, torch.stack([r["states"][t]["x"] for r in results]) / w[:, None])
        apart.append(float((z - rows.mean(0)).abs().max()))
    assert apart[-1] < 0.1 * apart[0] or apart[-1] < 1e-15  # all z go to the mean of what they started from
    if topology == "one_peer_and_random" and n > 2:
        assert weights_w(results, 11).tolist() != [1.0] * n
    assert torch.allclose(flat(results[-1]["weights"]), rows.mean(0), rtol=0, atol=1e-14)


def test_looking_at_the_consensus_changes_nothing(fabric):
    case = Case([[2] * 3] * 4)
    looked = fabric(3, live, Life(PushSum("one_peer_and_random", period=3), case, seeds=APART, looks=True))
    apart = fabric(3, live, Life(PushSum("one_peer_and_random", period=3), case, seeds=APART))
    for t in range(4):
        assert torch.equal(stacked(looked, t), stacked(apart, t))
        w = weights_w(apart, t)[:, None]
        mean = (w * stacked(apart, t)).sum(0) / w.sum()
        assert all(torch.allclose(flat(result["seen"][t]), mean, rtol=0, atol=1e-14) for result in looked)
    assert looked[0]["ledger"] == apart[0]["ledger"]


# -- cost, state, refusals


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize(
    ("topology", "n"), [("exponential", 5), ("one_peer_exponential", 3), ("one_peer_and_random", 3)]
)
def test_stated_cost_is_what_a_step_sends(fabric, topology, n, period):
    steps = 6
    sync = PushSum(topology, period)
    results = fabric(n, live, Life(sync, Case([[1] * n] * steps, model=mlp)))
    entries = sum(parameter.numel() for parameter in mlp().parameters())
    degree = {"exponential": 3, "one_peer_exponential": 1, "one_peer_and_random": 2}[topology]
    cost = sync.cost(list(mlp().parameters()), World(n))
    for result in results:
        assert result["ledger"] == {"send": steps // period * degree * (FLOAT * entries + WEIGHT)}
        assert result["ledger"]["send"] == pytest.approx(steps * cost.worker["send"])
        assert result["buffers"] == cost.buffers


def test_stated_cost_of_one_worker_is_nothing():
    assert PushSum().cost(list(mlp().parameters()), World(1)).worker == {"send": 0}
    assert PushSum().cost(list(mlp().parameters()), World(1)).buffers == 0


def test_replicas_go_on_where_they_were_saved_inside_a_period(fabric):
    case = Case([[3] * 4] * 7, model=mlp)
    sync = PushSum("one_peer_and_random", period=2)
    straight = fabric(4, live, Life(sync, case, seeds=APART))
    resumed = fabric(4, live, Life(sync, case, saved=saved_after(straight, 5), start=5))
    assert weights_w(straight, 4).tolist() != [1.0] * 4
    for one, other in zip(straight, resumed, strict=True):
        assert all(identical(a, b) for a, b in zip(one["trajectory"][5:], other["trajectory"], strict=True))
        assert identical(one["weights"], other["weights"])


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"sync=bsp") as caught:
        PushSum().cost(list(TwoDtypes().parameters()), World(2))
    assert caught.value.exit_code == 2


# -- deaths


@pytest.mark.fault
@pytest.mark.parametrize(
    ("topology", "n"), [("one_peer_exponential", 2), ("exponential", 4), ("one_peer_and_random", 4)]
)
def test_the_living_go_on_without_a_dead_worker_and_come_together(workers, topology, n):
    """No gradients: the z of the living go to sum x / sum w of what the dead one left to them."""
    steps = 30
    case = Case([[0] * n] * steps)
    results = workers(n, live, Life(PushSum(topology), case, seeds=APART, dies={1: 2}), lost=[1])
    living = [results[rank] for rank in range(n) if rank != 1]
    w, z = weights_w(living, steps - 1), stacked(living, steps - 1)
    mean = (w[:, None] * z).sum(0) / w.sum()
    assert bool((w > 0).all())
    assert (
        n / 16 < float(w.sum()) <= n
    )  # what goes to the dead is lost, until one knows; halved 27 times it were nothing
    assert torch.allclose(z, mean, rtol=0, atol=1e-3)
    assert all(torch.allclose(flat(result["weights"]), mean, rtol=0, atol=ROUNDING) for result in living)
    assert living[0]["report"]["lost"] == [1]
