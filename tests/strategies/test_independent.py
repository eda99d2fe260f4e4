"""Independent replicas: serial training of each on its own batches, and one mean at the end."""

import pytest
import torch
from oracles import (
    ROUNDING,
    Case,
    Plan,
    TwoDtypes,
    adam,
    distance,
    identical,
    mlp,
    momentum,
    serial,
    train,
    weights_of,
    workers_of,
)
from replicas import Life, Replica, flat, live, saved_after, stacked
from torch import Tensor

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.strategies.core.cost import World
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.sync.independent import Independent
from paceline.strategies.sync.local_sgd import LocalSGD

pytestmark = pytest.mark.dist
APART = [0, 1, 2, 3]  # replicas start apart: replica 0's start counts
UNEVEN = [[4, 4, 4], [3, 3, 2], [4, 4, 4], [1, 0, 0], [2, 1, 1]]


def alone(case: Case, rank: int) -> Tensor:
    """[steps, entries]: what the replica of this rank trains."""
    replica = Replica(case, 0, rank)
    rows = []
    for step in range(len(case.sizes)):
        replica.gradient(step)
        replica.step()
        rows.append(replica.vector)
    return torch.stack(rows)


def mean(case: Case, ranks: list[int]) -> Tensor:
    """sum_i (n_i / n) w_i over these replicas."""
    n = {rank: sum(sizes[rank] for sizes in case.sizes) for rank in ranks}
    rows = [alone(case, rank)[-1] * n[rank] / sum(n.values()) for rank in ranks]
    return torch.stack(rows).sum(0)


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_every_replica_trains_alone_and_the_end_is_the_mean_by_samples(fabric, optimizer):
    case = Case(UNEVEN, optimizer=optimizer)
    results = fabric(3, live, Life(Independent(), case, seeds=APART, looks=True))
    for rank, result in enumerate(results):
        rows = alone(case, rank)
        assert all(torch.equal(flat(mine), row) for mine, row in zip(result["trajectory"], rows, strict=True))
        assert all(identical(a, b) for a, b in zip(result["seen"], result["trajectory"], strict=True))
        assert torch.allclose(flat(result["weights"]), mean(case, [0, 1, 2]), rtol=0, atol=ROUNDING)
        assert identical(result["weights"], results[0]["weights"])
        assert identical(result["result"], result["weights"])


def test_it_is_local_sgd_with_one_round(fabric):
    case = Case(UNEVEN)
    [independent, *_] = fabric(3, live, Life(Independent(), case))
    [local, *_] = fabric(3, live, Life(LocalSGD(period=100), case))
    assert distance(independent["weights"], local["weights"]) < ROUNDING


def test_one_replica_is_serial_training_bit_for_bit(fabric):
    case = Case([[4], [3], [1]], model=mlp)
    [result] = fabric(1, live, Life(Independent(), case))
    assert identical(result["weights"], serial(case))
    assert identical(result["result"], result["weights"])


def test_training_sends_nothing_as_stated_evaluation_and_checkpoints_included(fabric):
    sync = Independent()
    cost = sync.cost(list(mlp().parameters()), World(3))
    assert (cost.worker, cost.server, cost.buffers) == ({}, {}, 0)
    for result in fabric(3, live, Life(sync, Case(UNEVEN, model=mlp), looks=True)):
        assert result["ledger"] == {}
        assert result["buffers"] == 0


def test_nobody_waits_for_a_slow_one(virtual_workers):
    case = Case([[2, 2, 2]] * 5)
    results = virtual_workers(3, live, Life(Independent(), case, seconds=[1.0, 10.0, 2.0], looks=True))
    assert [result["clock"] for result in results] == [5.0, 50.0, 10.0]


def loaded(comm, case: Case, saved: bytes):
    """All replicas are given what replica 0 saved: what they have of it."""
    model, state = case.start(comm.rank), from_bytes(saved)
    model.load_state_dict(state["weights"])
    sync = Independent()
    sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
    sync.load_state_dict(state["sync"])
    return {"weights": weights_of(model), "optimizer": bool(sync.optimizer.state)}


def test_replica_0_goes_on_where_it_was_saved_bit_for_bit(fabric):
    case = Case([[sizes[0]] for sizes in UNEVEN], model=mlp)
    [straight] = fabric(1, live, Life(Independent(), case))
    [resumed] = fabric(1, live, Life(Independent(), case, saved=saved_after([straight], 2), start=2))
    assert identical(resumed["weights"], straight["weights"])


def test_a_resumed_run_has_all_at_replica_0s_weights_the_others_with_new_optimizers(fabric):
    case = Case(UNEVEN, model=mlp)
    [first, *_] = fabric(3, live, Life(Independent(), case))
    saved = to_bytes({"weights": first["trajectory"][1], "sync": first["states"][1]})
    resumed = fabric(3, loaded, case, saved)
    assert all(identical(result["weights"], first["trajectory"][1]) for result in resumed)
    assert [result["optimizer"] for result in resumed] == [True, False, False]


def test_samples_of_before_count_in_the_mean_of_a_resumed_run(fabric):
    """All have replica 0's weights and number of samples, and go on from there."""
    case = Case([[4, 4], [4, 4], [3, 1]])
    [first, _] = fabric(2, live, Life(Independent(), case))
    saved = to_bytes({"weights": first["trajectory"][1], "sync": first["states"][1]})
    results = fabric(2, live, Life(Independent(), case, saved=[saved, saved], start=2))
    rows = stacked(results, 0)
    expected = (rows[0] * (8 + 3) + rows[1] * (8 + 1)) / 20
    assert torch.allclose(flat(results[1]["weights"]), expected, rtol=0, atol=ROUNDING)


@pytest.mark.fault
@pytest.mark.parametrize("n", [2, 3])
def test_a_dead_replica_is_left_out_of_the_mean(workers, n):
    case = Case([sizes[:n] for sizes in UNEVEN])
    results = workers(n, live, Life(Independent(), case, dies={1: 2}), lost=[1])
    living = [rank for rank in range(n) if rank != 1]
    for rank in living:
        assert torch.allclose(flat(results[rank]["weights"]), mean(case, living), rtol=0, atol=ROUNDING)
    assert results[0]["report"] == {"lost": [1]}


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"sync: .*sync=bsp"):
        Independent().cost(list(TwoDtypes().parameters()), World(2))


def test_replicas_of_a_pipeline_average_part_by_part(fabric):
    """Two replicas of two stages train as two that hold the whole model."""
    case = Case([[4, 4], [3, 2], [4, 4]])
    plan = Plan(Pipeline(2, "gpipe", 2), Independent(), case)
    results = fabric(workers_of(plan), train, plan)
    whole = fabric(2, train, Plan(DataParallel(), Independent(), case))
    assert distance(results[0]["weights"] | results[1]["weights"], whole[0]["weights"]) < ROUNDING
    for stage in (0, 1):
        assert identical(results[stage]["weights"], results[2 + stage]["weights"])


# -- whole runs


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("choice", ["independent"])
def test_digits_are_learnt_within_two_points_of_serial_training(fork_server, tmp_path, choice):
    settings = ("tracking=none", "hardware.device=cpu", "hardware.threads=1")
    ways = ("strategy=single", "batch_size=64"), (f"sync={choice}", "hardware.workers=2")
    alone, result = (engine.run([*way, *settings], root=tmp_path, quiet=True) for way in ways)
    assert alone is not None and alone.accuracy is not None
    assert result is not None and result.accuracy is not None
    assert result.accuracy > alone.accuracy - 0.02
