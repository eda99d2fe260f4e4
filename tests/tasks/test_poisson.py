"""partition=poisson: the draws, each sample by itself, against the distributions that they must have."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from paceline.tasks.partition import ShuffledPartition
from paceline.tasks.poisson import PoissonPartition

partitions = st.builds(
    PoissonPartition,
    samples=st.integers(1, 300),
    replicas=st.integers(1, 9),
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 2**63),
)
STEPS, N = 2000, 60


def taken(partition: PoissonPartition, step: int) -> list[int]:
    return torch.cat([partition.indices(step, r) for r in range(partition.replicas)]).tolist()


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """[steps, samples]: whether a sample is in a step; q = 12 / 60."""
    partition = PoissonPartition(samples=N, replicas=1, batch_size=12, seed=5)
    found = np.zeros((STEPS, N), dtype=bool)
    for step in range(STEPS):
        found[step, partition.indices(step, 0)] = True
    return found


def test_a_batchs_size_is_binomial(drawn: np.ndarray) -> None:
    sizes, q = drawn.sum(1), 12 / N
    assert abs(sizes.mean() - 12) < 4 * np.sqrt(N * q * (1 - q) / STEPS)
    assert sizes.var() == pytest.approx(N * q * (1 - q), rel=4 * np.sqrt(2 / STEPS))
    edges = np.arange(6, 20)  # each bin, and both tails, has enough
    seen = [(sizes < edges[0]).sum(), *((sizes == size).sum() for size in edges), (sizes > edges[-1]).sum()]
    law: Any = stats.binom(N, q)
    wanted = [law.cdf(edges[0] - 1), *law.pmf(edges), law.sf(edges[-1])]
    assert stats.chisquare(seen, np.array(wanted) * STEPS).pvalue > 1e-3


def test_each_sample_is_in_a_step_with_the_same_probability(drawn: np.ndarray) -> None:
    q = 12 / N
    deviations = (drawn.sum(0) - STEPS * q) / np.sqrt(STEPS * q * (1 - q))
    assert 1e-3 < stats.chi2(N).cdf((deviations**2).sum()) < 1 - 1e-3


def test_samples_do_not_depend_on_each_other(drawn: np.ndarray) -> None:
    found = np.corrcoef(drawn, rowvar=False)[np.triu_indices(N, 1)]
    assert abs(found.mean()) < 4 / np.sqrt(STEPS * len(found)), "a fixed size would give -1 / (n - 1)"
    assert STEPS * (found**2).mean() == pytest.approx(1, abs=4 * np.sqrt(2 / len(found)))


@pytest.mark.parametrize("apart", [1, 2, 5])  # an epoch has 5 steps
def test_steps_do_not_depend_on_each_other(drawn: np.ndarray, apart: int) -> None:
    q = 12 / N
    both = (drawn[apart:] & drawn[:-apart]).mean()
    assert both == pytest.approx(q * q, abs=4 * np.sqrt(q * q * (1 - q * q) / drawn[apart:].size))


def test_now_and_then_a_batch_has_no_sample() -> None:
    partition = PoissonPartition(samples=20, replicas=1, batch_size=2, seed=0)
    empty = sum(partition.total(step) == 0 for step in range(1000))
    assert stats.binomtest(empty, 1000, 0.9**20).pvalue > 1e-3
    first = next(step for step in range(1000) if partition.total(step) == 0)
    assert partition.indices(first, 0).shape == (0,) and partition.indices(first, 0).dtype == torch.int64


@settings(deadline=None, max_examples=50)
@given(partitions, st.integers(0, 1000))
def test_the_replicas_together_take_what_one_with_the_whole_batch_takes(partition: PoissonPartition, step: int) -> None:
    one = PoissonPartition(partition.samples, 1, partition.replicas * partition.batch_size, partition.seed)
    assert taken(partition, step) == one.indices(step, 0).tolist()
    assert one.expected == partition.expected and one.steps_per_epoch == partition.steps_per_epoch
    assert len(set(taken(partition, step))) == partition.total(step)


@settings(deadline=None, max_examples=50)
@given(partitions, st.integers(0, 1000))
def test_sizes_are_those_of_the_indices_and_differ_by_one_at_most(partition: PoissonPartition, step: int) -> None:
    sizes = [partition.size(step, r) for r in range(partition.replicas)]
    assert sizes == [len(partition.indices(step, r)) for r in range(partition.replicas)]
    assert sum(sizes) == partition.total(step)
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


@settings(deadline=None, max_examples=50)
@given(partitions)
@pytest.mark.slow
def test_an_epoch_has_as_many_steps_as_a_shuffled_one_and_a_step_as_many_samples_on_average(
    partition: PoissonPartition,
) -> None:
    shuffled = ShuffledPartition(partition.samples, partition.replicas, partition.batch_size, 0)
    assert partition.steps_per_epoch == shuffled.steps_per_epoch and partition.expected == shuffled.total(0)
    assert sum(partition.shares) == pytest.approx(1)


def test_a_batch_of_all_samples_has_each_of_them_in_every_step() -> None:
    for batch_size in (10, 25):
        partition = PoissonPartition(samples=20, replicas=2, batch_size=batch_size, seed=0)
        assert partition.expected == 20
        assert all(sorted(taken(partition, step)) == list(range(20)) for step in range(5))


def test_a_draw_depends_on_seed_and_step_and_on_nothing_else() -> None:
    def batch(seed: int, step: int) -> list[int]:
        return PoissonPartition(samples=100, replicas=1, batch_size=20, seed=seed).indices(step, 0).tolist()

    draws = [batch(seed, step) for seed in (0, 1) for step in (0, 1, 7)]
    torch.manual_seed(5)
    assert draws == [batch(seed, step) for seed in (0, 1) for step in (0, 1, 7)]
    assert len({tuple(each) for each in draws}) == len(draws)


def test_writing_into_the_indices_does_not_change_the_draw() -> None:
    partition = PoissonPartition(samples=8, replicas=2, batch_size=4, seed=3)
    before = partition.indices(0, 0).tolist()
    partition.indices(0, 0).zero_()
    assert partition.indices(0, 0).tolist() == before


def test_a_replica_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AssertionError):
        PoissonPartition(samples=8, replicas=2, batch_size=4, seed=3).indices(0, 2)
