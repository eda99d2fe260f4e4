"""Asynchronous gossip: on the virtual clock against a simulation of its events, on processes by what must hold."""

import os
import signal
from collections import Counter
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from oracles import CLASSES, FEATURES, ROUNDING, Case, TwoDtypes, adam, identical, mlp, momentum, replica_batch, serial
from replicas import Life, Replica, flat, live, saved_after
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.strategies.core.cost import World
from paceline.strategies.sync.gossip_async import HEADER, AsyncGossip

pytestmark = pytest.mark.dist
APART = [0, 1, 2, 3, 4]  # replicas that start apart
FLOAT = 4  # bytes


def peer_of(seed: int, t: int, rank: int, n: int) -> int:
    rng, peer = np.random.default_rng((seed, t, rank)), rank
    while peer == rank:
        peer = int(rng.integers(n))
    return peer


def simulate(case: Case, seconds: list[float], period: int, conserve: bool, seed: int):
    """Each replica's weights after each step, the result of all, and the staleness of what was mixed.

    Replica i begins its step k at k seconds_i, and ends it, and pushes, at (k + 1) seconds_i; messages take no time.
    """
    n, steps = len(seconds), len(case.sizes)
    replicas = [Replica(case, APART[i], i) for i in range(n)]
    w = [1.0] * n
    inbox: list[list[tuple[Tensor, int, float]]] = [[] for _ in range(n)]
    done = [0] * n
    trajectory: list[list[Tensor]] = [[] for _ in range(n)]
    staleness: Counter[int] = Counter()

    def mix(i: int) -> None:
        for theirs, t, its_w in inbox[i]:
            replicas[i].vector = (w[i] * replicas[i].vector + its_w * theirs) / (w[i] + its_w)
            if conserve:
                w[i] += its_w
            staleness[max(done[i] - t, 0)] += 1
        inbox[i].clear()

    for i in range(n):
        replicas[i].gradient(0)
    ends = sorted(((k + 1) * seconds[i], i, k) for i in range(n) for k in range(steps))
    assert all(b[0] - a[0] > 1e-2 for a, b in pairwise(ends)), "ties: the order would be up to chance"
    for _, i, k in ends:
        replicas[i].step()
        done[i] = k + 1
        if (k + 1) % period == 0:
            if conserve:
                w[i] /= 2
            inbox[peer_of(seed, k + 1, i, n)].append((replicas[i].vector, k + 1, w[i]))
        trajectory[i].append(replicas[i].vector)
        if k + 1 < steps:
            mix(i)
            replicas[i].gradient(k + 1)
    for i in range(n):
        mix(i)
    result = sum(a * r.vector for a, r in zip(w, replicas, strict=True)) / sum(w)
    return trajectory, cast(torch.Tensor, result), dict(staleness)


# -- what it computes


def test_one_replica_is_serial_training_bit_for_bit_and_sends_nothing(fabric):
    case = Case([[4], [3], [1]], model=mlp)
    [result] = fabric(1, live, Life(AsyncGossip(), case))
    assert identical(result["weights"], serial(case))
    assert identical(result["result"], result["weights"])
    assert result["ledger"] == {}


@pytest.mark.parametrize("conserve", [False, True])
@pytest.mark.parametrize(
    ("seconds", "period", "optimizer"),
    [([1.0, 1.37], 1, momentum), ([1.0, 2.83, 0.61], 1, adam), ([1.0, 1.19, 5.03, 0.71], 2, momentum)],
)
def test_on_the_virtual_clock_every_event_is_that_of_the_simulation(
    virtual_workers, seconds, period, optimizer, conserve
):
    n = len(seconds)
    case = Case([[2] * n] * 6, optimizer=optimizer)
    sync = AsyncGossip(period, conserve, seed=5)
    results = virtual_workers(n, live, Life(sync, case, seeds=APART, seconds=seconds))
    trajectory, result, staleness = simulate(case, seconds, period, conserve, seed=5)
    for i in range(n):
        for t in range(6):
            assert torch.allclose(flat(results[i]["trajectory"][t]), trajectory[i][t], rtol=0, atol=ROUNDING)
        assert torch.allclose(flat(results[i]["weights"]), result, rtol=0, atol=ROUNDING)
        assert results[i]["clock"] == pytest.approx(6 * seconds[i], abs=1e-3)  # it waited for nobody
    assert sum((Counter(result["report"]["staleness"]) for result in results), Counter()) == staleness
    assert max(staleness) > 0


def test_sum_weights_other_periods_and_other_seeds_train_something_else():
    case = Case([[2] * 3] * 6)
    kinds = [(1, False, 5), (1, True, 5), (2, False, 5), (1, False, 6)]
    ends = [simulate(case, [1.0, 2.83, 0.61], *kind)[1] for kind in kinds]
    assert not any(torch.allclose(a, b, atol=1e-6) for i, a in enumerate(ends) for b in ends[:i])


# -- what holds however they interleave


def starts(case: Case, n: int) -> Tensor:
    return torch.stack([flat(dict(case.start(seed).named_parameters())).detach() for seed in APART[:n]])


@pytest.mark.parametrize("n", [2, 3, 5])
def test_with_sum_weights_the_mean_is_conserved_what_is_under_way_counted_in(fabric, n):
    """No gradients; at the end all that is under way has been received."""
    case = Case([[0] * n] * 40)
    results = fabric(
        n, live, Life(AsyncGossip(conserve=True), case, seeds=APART, seconds=[1e-4 * (i + 1) for i in range(n)])
    )
    for result in results:
        assert torch.allclose(flat(result["weights"]), starts(case, n).mean(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("conserve", [False, True])
def test_mixing_makes_convex_combinations_of_what_all_started_from(fabric, conserve):
    n = 3
    case = Case([[0] * n] * 20)
    results = fabric(n, live, Life(AsyncGossip(conserve=conserve), case, seeds=APART, seconds=[1e-4, 2e-4, 3e-4]))
    low, high = starts(case, n).min(0).values - 1e-15, starts(case, n).max(0).values + 1e-15
    for result in results:
        for weights in [*result["trajectory"], result["weights"]]:
            assert bool(((flat(weights) >= low) & (flat(weights) <= high)).all())
        assert not identical(result["trajectory"][-1], dict(case.start(APART[0]).named_parameters()))


@pytest.mark.parametrize("steps", [[6, 6, 6], [1, 40, 12], [30, 2, 0]])
def test_every_push_is_received_once_and_all_hold_the_same_in_the_end(fabric, steps):
    """However many steps each has done when training is over."""
    case = Case([[2] * 3] * max(steps), model=mlp)
    results = fabric(3, live, Life(AsyncGossip(), case, seeds=APART, steps=steps))
    received = sum((Counter(result["report"]["staleness"]) for result in results), Counter())
    assert received.total() == sum(steps)
    assert min(received) >= 0
    assert all(identical(result["weights"], results[0]["weights"]) for result in results)
    assert all(identical(result["result"], results[0]["weights"]) for result in results)
    assert [result["report"]["lost"] for result in results] == [[], [], []]


class Large(nn.Module):
    """16 MiB, which no socket's buffers hold."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, CLASSES)
        self.rest = nn.Parameter(torch.zeros(4 * 2**20))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.float()) + self.rest[0]


def push_large(comm, steps):
    model = Large()
    sync = AsyncGossip()
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=0.1), comm)
    batch = replica_batch(Case([[1] * comm.size]), 0, comm.rank)
    for _ in range(steps):
        sync.begin(batch)
        sync.update()
    sync.finish()
    return sync.report()


def test_workers_that_push_large_models_to_each_other_do_not_block_each_other(fabric):
    reports = fabric(3, push_large, 6)
    assert sum((Counter(report["staleness"]) for report in reports), Counter()).total() == 18


def look(comm, case):
    """Replica 0 looks after every step, while the other trains."""
    model = case.start()
    sync = AsyncGossip()
    sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
    same = []
    if comm.rank == 0:
        for _ in range(5):
            with comm.ledger.aside():
                same.append(identical(sync.consensus(), dict(model.named_parameters())))
    sync.finish()
    return same


def test_while_training_goes_on_the_consensus_is_replica_0s_own_copy_and_asks_nobody(fabric):
    assert fabric(2, look, Case([[2, 2]])) == [[True] * 5, []]


# -- cost, state, refusals


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("n", [2, 3])
def test_stated_cost_is_what_a_step_sends(fabric, n, period):
    steps = 6
    sync = AsyncGossip(period)
    results = fabric(n, live, Life(sync, Case([[1] * n] * steps, model=mlp)))
    entries = sum(parameter.numel() for parameter in mlp().parameters())
    cost = sync.cost(list(mlp().parameters()), World(n))
    for result in results:
        assert result["ledger"] == {"send": steps // period * (FLOAT * entries + HEADER)}
        assert result["ledger"]["send"] == pytest.approx(steps * cost.worker["send"])
        assert result["buffers"] == cost.buffers


def test_stated_cost_of_one_worker_is_nothing():
    cost = AsyncGossip().cost(list(mlp().parameters()), World(1))
    assert (cost.worker, cost.buffers) == ({}, 0)


def test_one_worker_goes_on_where_it_was_saved_and_draws_as_if_it_had_not_stopped(virtual_workers):
    case = Case([[3, 3]] * 7, model=mlp)
    [one, other] = virtual_workers(2, live, Life(AsyncGossip(period=2), case))
    again = Life(AsyncGossip(period=2), case, saved=saved_after([one, other], 3), start=3, steps=[3, 3])
    assert [result["states"] for result in virtual_workers(2, live, again)] == [[], []]
    assert [state["t"] for state in one["states"]] == [1, 2, 3, 4, 5, 6, 7]
    alone = virtual_workers(1, live, Life(AsyncGossip(), Case([[3]] * 7, model=mlp)))
    on = Life(AsyncGossip(), Case([[3]] * 7, model=mlp), saved=saved_after(alone, 3), start=3)
    [resumed] = virtual_workers(1, live, on)
    assert identical(resumed["weights"], alone[0]["weights"])
    assert [state["t"] for state in resumed["states"]] == [4, 5, 6, 7]


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"sync=bsp") as caught:
        AsyncGossip().cost(list(TwoDtypes().parameters()), World(2))
    assert caught.value.exit_code == 2


# -- deaths


@pytest.mark.fault
@pytest.mark.parametrize("n", [2, 4])
def test_the_living_go_on_without_a_dead_worker_and_agree_in_the_end(workers, n):
    case = Case([[2] * n] * 60, model=mlp)
    life = Life(AsyncGossip(), case, seeds=APART, seconds=[0.005] * n, dies={1: 3})
    results = workers(n, live, life, lost=[1])
    living = [results[rank] for rank in range(n) if rank != 1]
    assert all(identical(result["weights"], results[0]["weights"]) for result in living)
    assert all(result["report"]["lost"] == [1] for result in living)
    push = FLOAT * sum(parameter.numel() for parameter in mlp().parameters()) + HEADER
    for result in living:  # who is alone pushes to nobody; among others nearly every push is to a living one
        sent = result["ledger"]["send"] / push
        assert sent < 20 if n == 2 else sent > 50


def die_at_the_end(comm, case):
    """Worker 1 dies when it has told that it is done, and has not said what it holds."""
    sync = AsyncGossip(conserve=True)
    if comm.rank == 1:
        tell = sync._tell

        def tell_and_die(*arguments):
            tell(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        cast(Any, sync)._tell = tell_and_die
    return live(comm, Life(sync, case, seeds=APART))


@pytest.mark.fault
def test_a_death_in_the_end_leaves_the_rest_their_mean(workers):
    results = workers(3, die_at_the_end, Case([[2] * 3] * 5), lost=[1])
    assert identical(results[0]["weights"], results[2]["weights"])
    assert results[0]["report"]["lost"] == [1]
