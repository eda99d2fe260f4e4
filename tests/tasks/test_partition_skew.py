"""Partitions in which each replica owns samples of its own, of other classes than its peers'."""

from collections import Counter
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.tasks.base import DataSpec
from paceline.tasks.data.digits import Digits
from paceline.tasks.partition import ByLabel, Dirichlet, OwnedPartition, Partitioner, ShuffledPartition

labels = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(torch.tensor)
partitioners: st.SearchStrategy[Partitioner] = st.one_of(
    st.builds(Dirichlet, alpha=st.floats(1e-3, 1e3)), st.builds(ByLabel, labels=st.integers(1, 3))
)
replicas = st.integers(1, 9)
batch_sizes = st.integers(1, 20)
seeds = st.integers(0, 2**63 - 1)
TEXT = DataSpec((64,), torch.int64, (64,), 256, 1000, 100)
FEW = DataSpec((1, 8, 8), torch.float32, (), 10, 11, 5)


def deal(partitioner: Partitioner, targets: Tensor, replicas: int, batch_size: int, seed: int) -> OwnedPartition:
    assume(len(targets) >= replicas * getattr(partitioner, "labels", 1))
    partition = partitioner.deal(targets, replicas, batch_size, seed)
    assert isinstance(partition, OwnedPartition)
    return partition


def epoch_of(partition: OwnedPartition, replica: int, epoch: int = 0) -> list[int]:
    first = epoch * partition.steps_per_epoch
    return [i for s in range(partition.steps_per_epoch) for i in partition.indices(first + s, replica).tolist()]


def label_counts(partition: OwnedPartition, targets: Tensor, classes: int) -> np.ndarray:
    """[replicas, classes]"""
    everyone = range(partition.replicas)
    return np.stack([np.bincount(targets[epoch_of(partition, k)].numpy(), minlength=classes) for k in everyone])


@given(partitioners, labels, replicas, batch_sizes, seeds, st.integers(0, 3))
def test_an_epoch_takes_every_sample_exactly_once_and_nobody_has_none(partitioner, targets, count, size, seed, epoch):
    partition = deal(partitioner, targets, count, size, seed)
    mine = [epoch_of(partition, replica, epoch) for replica in range(count)]
    assert sorted(i for own in mine for i in own) == list(range(len(targets)))
    assert min(map(len, mine)) >= 1
    assert partition.samples == len(targets)


@given(partitioners, labels, replicas, batch_sizes, seeds)
def test_a_replica_owns_the_same_samples_in_every_epoch(partitioner, targets, count, size, seed):
    partition = deal(partitioner, targets, count, size, seed)
    for replica in range(count):
        assert sorted(epoch_of(partition, replica, 0)) == sorted(epoch_of(partition, replica, 5))


@given(partitioners, labels, replicas, batch_sizes, seeds)
def test_sizes_and_totals_are_those_of_the_indices_and_only_a_last_batch_is_uneven(
    partitioner, targets, count, size, seed
):
    partition = deal(partitioner, targets, count, size, seed)
    length = partition.steps_per_epoch
    own = [len(epoch_of(partition, replica)) for replica in range(count)]
    assert length == max(-(-n // size) for n in own)
    for step in range(2 * length):
        sizes = [partition.size(step, replica) for replica in range(count)]
        assert sizes == [len(partition.indices(step, replica)) for replica in range(count)]
        assert sizes == [min(max(n - step % length * size, 0), size) for n in own]
        assert partition.total(step) == sum(sizes)


@given(partitioners, labels, replicas, batch_sizes, seeds, st.integers(0, 3))
def test_drop_last_leaves_out_the_smaller_batch_of_each_replica_and_changes_no_other(
    partitioner, targets, count, size, seed, epoch
):
    partition = deal(partitioner, targets, count, size, seed)
    mine = [epoch_of(partition, replica, epoch) for replica in range(count)]
    partitioner.drop_last = True
    if min(map(len, mine)) < size:
        with pytest.raises(ConfigError, match=rf"A batch of replica \d+ takes {size} samples, and there are "):
            partitioner.deal(targets, count, size, seed)
        return
    dropped = deal(partitioner, targets, count, size, seed)
    assert [epoch_of(dropped, replica, epoch) for replica in range(count)] == [
        own[: len(own) // size * size] for own in mine
    ]
    assert dropped.steps_per_epoch == max(map(len, mine)) // size
    assert dropped.sizes() <= {0, size} and set(dropped.indices(0, 0).shape) == {size}
    assert torch.cat([dropped.owned(k) for k in range(count)]).unique().tolist() == list(range(len(targets)))


@given(partitioners, labels, replicas, seeds)
def test_dealing_depends_on_the_seed_alone(partitioner, targets, count, seed):
    first = deal(partitioner, targets, count, 4, seed)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    again = deal(partitioner, targets, count, 7, seed)
    assert [sorted(epoch_of(first, k)) for k in range(count)] == [sorted(epoch_of(again, k)) for k in range(count)]


@pytest.mark.parametrize("partitioner", [Dirichlet(0.5), ByLabel(2)])
def test_another_seed_deals_otherwise_and_another_epoch_comes_in_another_order(partitioner):
    targets = torch.arange(200) % 10
    one, other = (partitioner.deal(targets, 4, 8, seed) for seed in (0, 1))
    assert [sorted(epoch_of(one, k)) for k in range(4)] != [sorted(epoch_of(other, k)) for k in range(4)]
    assert epoch_of(one, 0, 0) != epoch_of(one, 0, 1)
    assert sorted(epoch_of(one, 0, 0)) == sorted(epoch_of(one, 0, 1))


@given(partitioners, labels, batch_sizes, st.integers(0, 100), st.integers(0, 50))
def test_one_replica_alone_trains_as_under_shuffled(partitioner, targets, size, seed, step):
    partition = deal(partitioner, targets, 1, size, seed)
    shuffled = ShuffledPartition(len(targets), 1, size, seed)
    assert partition.steps_per_epoch == shuffled.steps_per_epoch
    assert partition.indices(step, 0).tolist() == shuffled.indices(step, 0).tolist()


def test_a_replica_is_idle_once_its_samples_are_used_up():
    partition = OwnedPartition([np.array([0, 1, 2, 3, 4]), np.array([5]), np.array([6, 7])], batch_size=2, seed=0)
    assert partition.steps_per_epoch == 3
    assert [[partition.size(step, k) for k in range(3)] for step in range(4)] == [
        [2, 1, 2],
        [2, 0, 0],
        [1, 0, 0],
        [2, 1, 2],
    ]
    empty = partition.indices(1, 1)
    assert empty.shape == (0,) and empty.dtype == torch.int64


def test_replicas_may_stand_at_different_steps():
    partition = OwnedPartition([np.arange(6), np.arange(6, 12)], batch_size=2, seed=3)
    wanted = [(0, 0), (7, 1), (1, 0), (0, 1), (8, 1), (2, 0), (7, 0)]
    fresh = [OwnedPartition([np.arange(6), np.arange(6, 12)], 2, 3).indices(*at).tolist() for at in wanted]
    assert [partition.indices(*at).tolist() for at in wanted] == fresh


def test_writing_into_the_indices_does_not_change_the_order():
    partition = OwnedPartition([np.arange(6)], batch_size=3, seed=3)
    before = partition.indices(0, 0).tolist()
    partition.indices(0, 0).zero_()
    assert partition.indices(0, 0).tolist() == before


# -- Dirichlet


def share_of_the_largest_class(counts: np.ndarray) -> float:
    """Averaged over replicas; 1 / classes when classes are even, 1 when each replica has one."""
    return float((counts.max(1) / counts.sum(1)).mean())


def test_a_small_alpha_gives_a_replica_few_classes_and_a_large_one_all_of_them_evenly():
    targets = torch.arange(10_000) % 10
    shares = [
        share_of_the_largest_class(label_counts(Dirichlet(alpha).deal(targets, 10, 32, 0), targets, 10))
        for alpha in (0.01, 0.1, 1.0, 10.0, 10_000.0)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.7 and shares[-1] < 0.11


def test_a_large_alpha_is_close_to_identically_distributed():
    targets = torch.arange(10_000) % 10
    counts = label_counts(Dirichlet(1e6).deal(targets, 5, 32, 0), targets, 10)
    assert np.abs(counts - 200).max() <= 3  # 1000 of each class over 5 replicas


def test_which_samples_of_a_class_a_replica_gets_is_drawn():
    """At so large an alpha all get as many, whatever the seed."""
    targets = torch.arange(400) % 2
    mine = [sorted(epoch_of(Dirichlet(1e9).deal(targets, 4, 32, seed), 0)) for seed in (0, 1)]
    assert len(mine[0]) == len(mine[1]) == 100
    assert 0 < len(set(mine[0]) & set(mine[1])) < 60


def test_the_shares_of_a_class_have_the_mean_and_variance_of_a_dirichlet():
    """Of Dir(a, ..., a) over K: mean 1/K, variance (K-1) / (K^2 (K a + 1))."""
    count, alpha, per_class = 4, 0.7, 1000
    targets = torch.arange(50 * per_class) % 50
    draws = [label_counts(Dirichlet(alpha).deal(targets, count, 32, s), targets, 50) / per_class for s in range(8)]
    shares = np.concatenate(draws, axis=1)  # [replicas, 400]
    variance = (count - 1) / (count**2 * (count * alpha + 1))
    assert np.abs(shares.mean(1) - 1 / count).max() < 4 * (variance / shares.shape[1]) ** 0.5
    assert shares.var() == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e-3])
def test_nobody_is_left_with_nothing_however_small_alpha_is(alpha):
    targets = torch.arange(64) % 10
    partition = Dirichlet(alpha).deal(targets, 64, 4, 0)
    assert [len(epoch_of(partition, replica)) for replica in range(64)] == [1] * 64


def test_more_replicas_than_samples_are_refused():
    with pytest.raises(ConfigError, match="5 replicas cannot each own one of 4 samples") as caught:
        Dirichlet().deal(torch.zeros(4, dtype=torch.int64), 5, 1, 0)
    assert caught.value.exit_code == 2


# -- by label


@pytest.mark.parametrize(("count", "each"), [(10, 2), (5, 2), (10, 1), (20, 4)])
def test_a_replica_has_as_many_labels_as_shards_at_most(count, each):
    """Where a shard holds one class only: its size divides the class's."""
    targets = torch.arange(4000) % 10
    partition = ByLabel(each).deal(targets, count, 32, 0)
    counts = label_counts(partition, targets, 10)
    assert (counts > 0).sum(1).max() <= each
    assert (counts.sum(1) == 4000 // count).all()


@given(st.integers(2, 12), st.integers(1, 4), seeds)
@pytest.mark.slow
def test_a_shard_that_is_smaller_than_a_class_meets_two_labels_at_most(count, each, seed):
    targets = Digits().load()[0].targets
    assume(len(targets) / (count * each) < int(targets.bincount().min()))
    counts = label_counts(ByLabel(each).deal(targets, count, 32, seed), targets, 10)
    assert (counts > 0).sum(1).max() <= 2 * each


@given(st.integers(1, 9), st.integers(1, 4), seeds)
def test_replicas_have_one_size_but_for_the_shards_rounding(count, each, seed):
    partition = ByLabel(each).deal(torch.arange(100) % 7, count, 8, seed)
    sizes = [len(epoch_of(partition, replica)) for replica in range(count)]
    assert max(sizes) - min(sizes) <= each


def test_which_replica_gets_which_labels_is_drawn():
    targets = torch.arange(400) % 10
    hands = [
        tuple(map(tuple, label_counts(ByLabel(2).deal(targets, 10, 8, seed), targets, 10) > 0)) for seed in range(5)
    ]
    assert len(set(hands)) == 5


def test_more_shards_than_samples_are_refused():
    with pytest.raises(ConfigError, match=r"partition.labels=3: 4 replicas take 12 shards.*11 samples") as caught:
        ByLabel(3).deal(torch.zeros(11, dtype=torch.int64), 4, 1, 0)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("partitioner", [Dirichlet(), ByLabel()])
def test_samples_without_one_label_are_refused(partitioner):
    with pytest.raises(ConfigError, match=r"partition=(dirichlet|by_label).*64 targets.*partition=shuffled") as caught:
        partitioner.deal(torch.zeros(100, 64, dtype=torch.int64), 2, 8, 0)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("partitioner", "spec", "replicas", "says"),
    [
        (Dirichlet(), TEXT, 2, "partition=dirichlet.*64 targets"),
        (ByLabel(), TEXT, 2, "partition=by_label.*64 targets"),
        (Dirichlet(), FEW, 12, "12 replicas cannot each own one of 11 samples"),
        (ByLabel(3), FEW, 4, "partition.labels=3: 4 replicas take 12 shards.*11 samples"),
        (ByLabel(11), Digits().spec, 2, "partition.labels=11: must be 10 or less"),
    ],
)
def test_what_cannot_be_dealt_is_refused_without_the_data_where_that_is_known(partitioner, spec, replicas, says):
    with pytest.raises(ConfigError, match=says) as caught:
        partitioner.check(spec, replicas)
    assert caught.value.exit_code == 2


def test_a_plan_refuses_what_cannot_be_dealt():
    with pytest.raises(ConfigError, match=r"partition=by_label.*partition=shuffled"):
        prepare(["model=gpt", "data=text", "partition=by_label"]).plan()


@pytest.mark.parametrize("partitioner", [Dirichlet(), ByLabel()])
def test_the_steps_of_an_epoch_are_not_known_before_the_labels(partitioner):
    assert partitioner.steps_per_epoch(1437, 2, 32) is None


def test_a_thousand_replicas_cost_a_step_no_more_than_ten(monkeypatch):
    """Nothing that a worker asks at a step goes through all replicas."""
    partition = Dirichlet(0.1).deal(torch.arange(20_000) % 10, 1024, 8, 0)
    monkeypatch.setattr(partition, "_sizes", Watched(partition._sizes))
    for step in range(partition.steps_per_epoch):
        partition.size(step, 5)
        partition.total(step)
        partition.indices(step, 5)
    assert cast(Any, partition._sizes).asked == Counter({5: 2 * partition.steps_per_epoch})


class Watched(list):
    """A list that may be asked for one item at a time only."""

    def __init__(self, items: list[int]) -> None:
        super().__init__(items)
        self.asked: Counter[int] = Counter()

    def __getitem__(self, index):
        self.asked[index] += 1
        return super().__getitem__(index)

    def __iter__(self):
        raise AssertionError("goes through all replicas")
