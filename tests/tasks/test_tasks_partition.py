from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.engine.config.compose import compose
from paceline.tasks.partition import ShuffledPartition

partitions = st.builds(
    ShuffledPartition,
    samples=st.integers(1, 300),
    replicas=st.integers(1, 9),
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 2**63),
)


def taken(partition: ShuffledPartition, step: int) -> list[int]:
    return torch.cat([partition.indices(step, r) for r in range(partition.replicas)]).tolist()


@settings(deadline=None)
@given(partitions, st.integers(0, 3))
def test_an_epoch_takes_every_sample_exactly_once(partition: ShuffledPartition, epoch: int) -> None:
    first = epoch * partition.steps_per_epoch
    steps = range(first, first + partition.steps_per_epoch)
    assert sorted(i for step in steps for i in taken(partition, step)) == list(range(partition.samples))
    assert all(taken(partition, step) for step in steps)


@settings(deadline=None, max_examples=30)
@given(partitions)
def test_shares_are_those_of_the_samples_that_an_epoch_takes(partition: ShuffledPartition) -> None:
    steps = range(partition.steps_per_epoch)
    sizes = [sum(partition.size(step, replica) for step in steps) for replica in range(partition.replicas)]
    assert list(partition.shares) == [size / partition.samples for size in sizes]


@settings(deadline=None)
@given(partitions, st.integers(0, 1000))
def test_the_replicas_together_take_what_one_with_the_whole_batch_takes(
    partition: ShuffledPartition, step: int
) -> None:
    one = ShuffledPartition(partition.samples, 1, partition.replicas * partition.batch_size, partition.seed)
    assert one.steps_per_epoch == partition.steps_per_epoch
    assert taken(partition, step) == one.indices(step, 0).tolist()


@settings(deadline=None)
@given(partitions, st.integers(0, 1000))
def test_sizes_are_those_of_the_indices_and_differ_by_one_at_most(partition: ShuffledPartition, step: int) -> None:
    sizes = [partition.size(step, r) for r in range(partition.replicas)]
    assert sizes == [len(partition.indices(step, r)) for r in range(partition.replicas)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
    if (step + 1) % partition.steps_per_epoch:
        assert sizes == [partition.batch_size] * partition.replicas


def test_the_last_uneven_batch_may_leave_a_replica_without_samples() -> None:
    partition = ShuffledPartition(samples=10, replicas=4, batch_size=2, seed=0)
    assert [[partition.size(step, r) for r in range(partition.replicas)] for step in range(3)] == [
        [2] * 4,
        [1, 1, 0, 0],
        [2] * 4,
    ]
    empty = partition.indices(1, 3)
    assert empty.shape == (0,) and empty.dtype == torch.int64


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        return ShuffledPartition(samples=100, replicas=1, batch_size=100, seed=seed).indices(number, 0).tolist()

    orders = [epoch(seed, number) for seed in (0, 1) for number in (0, 1)]
    torch.manual_seed(5)
    assert orders == [epoch(seed, number) for seed in (0, 1) for number in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] != list(range(100))


def test_writing_into_the_indices_does_not_change_the_order() -> None:
    partition = ShuffledPartition(samples=8, replicas=2, batch_size=4, seed=3)
    before = partition.indices(0, 0).tolist()
    partition.indices(0, 0).zero_()
    assert partition.indices(0, 0).tolist() == before


def test_a_replica_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AssertionError):
        ShuffledPartition(samples=8, replicas=2, batch_size=4, seed=3).indices(0, 2)


@settings(deadline=None)
@given(partitions, st.integers(0, 1000))
def test_drop_last_leaves_out_the_uneven_step_and_changes_no_other(partition: ShuffledPartition, step: int) -> None:
    whole = partition.replicas * partition.batch_size
    if partition.samples < whole:
        with pytest.raises(ConfigError, match=r"^drop_last=true: leaves nothing to train on\. "):
            replace(partition, drop_last=True)
        return
    dropped = replace(partition, drop_last=True)
    assert dropped.steps_per_epoch == partition.samples // whole
    epoch, of_epoch = divmod(step, dropped.steps_per_epoch)
    same = epoch * partition.steps_per_epoch + of_epoch
    assert taken(dropped, step) == taken(partition, same)
    assert dropped.total(step) == whole and dropped.sizes() == {partition.batch_size}
    assert list(dropped.shares) == [1 / dropped.replicas] * dropped.replicas


def test_a_plan_counts_whole_batches_and_refuses_drop_last_where_none_is_left() -> None:
    def steps(*overrides: str) -> int | None:
        return prepare([*overrides, "hardware.workers=2", "drop_last=true"]).plan().steps_per_epoch

    clusters = "partition=clusters", "partition.method=random"
    assert steps("batch_size=32") == 1437 // 64
    assert steps("batch_size=32", *clusters) == 719 // 32
    with pytest.raises(ConfigError, match=r"A step of 2 replicas takes 1600 samples, and there are 1437\. .*=718 or"):
        steps("batch_size=800")
    with pytest.raises(ConfigError, match=r"A batch of replica 1 takes 719 samples, and there are 718\. .*=718 or"):
        steps("batch_size=719", *clusters)
    with pytest.raises(ConfigError, match=r"^drop_last=true: partition=poisson has no last batch to leave out"):
        steps("partition=poisson")
    with pytest.raises(ConfigError, match=r"^data\.drop_last=true: is called drop_last now$"):
        compose(["data.drop_last=true"])
