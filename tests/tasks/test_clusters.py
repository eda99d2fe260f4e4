"""Parts of samples that lie close together: k-means and both ways to keep parts of one size, against plain loops."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.tasks.base import DataSpec, Field
from paceline.tasks.clusters import Clusters, balanced, centres_of, distances, first_come, kmeans, sizes_of
from paceline.tasks.data.digits import Digits
from paceline.tasks.partition import OwnedPartition, Shuffled, ShuffledPartition

METHODS = ["balanced", "first_come", "random"]


def some_inputs(samples: int, seed: int = 0, dimensions: int = 3) -> Tensor:
    """In blobs of very different sizes, so that balance costs something."""
    rng = np.random.default_rng(seed)
    blob = np.minimum(rng.geometric(0.5, samples), 4)
    return torch.from_numpy(rng.normal(size=(samples, dimensions)) + 6 * blob[:, None]).float()


def dealt(method: Any, inputs: Tensor, replicas: int, seed: int = 0, batch_size: int = 4) -> OwnedPartition:
    return Clusters(method).deal(torch.empty(len(inputs), device="meta"), replicas, batch_size, seed, inputs)


def owned(partition: OwnedPartition) -> list[list[int]]:
    return [partition.owned(replica).tolist() for replica in range(partition.replicas)]


def inertia(inputs: Tensor, parts: list[list[int]]) -> float:
    """The sum over samples of the squared distance to the mean of their part."""
    return sum(float((inputs[part].double() - inputs[part].double().mean(0)).square().sum()) for part in parts)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(METHODS), st.integers(1, 60), st.integers(1, 9), st.integers(0, 2**63))
@example("first_come", 13, 3, 0)
def test_parts_are_of_one_size_to_within_one_and_have_every_sample_once(method, samples, replicas, seed):
    replicas = min(replicas, samples)
    parts = owned(dealt(method, some_inputs(samples, seed % 7), replicas, seed))
    assert sorted(i for part in parts for i in part) == list(range(samples))
    assert sorted((len(part) for part in parts), reverse=True) == sizes_of(samples, replicas)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_parts_and_another_one_others(method):
    inputs = some_inputs(60)
    first, again, other = (owned(dealt(method, inputs, 4, seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("method", METHODS)
def test_one_replica_owns_everything_and_takes_it_in_the_order_of_shuffled_samples(method):
    partition = dealt(method, some_inputs(30), 1)
    assert owned(partition) == [list(range(30))]
    plain = ShuffledPartition(30, 1, 4, 0)
    assert partition.steps_per_epoch == plain.steps_per_epoch
    assert all(torch.equal(partition.indices(step, 0), plain.indices(step, 0)) for step in range(20))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 12))
def test_how_many_have_samples_in_the_last_step_of_an_epoch_is_known_beforehand(samples, replicas, batch_size):
    replicas = min(replicas, samples)
    partition = dealt("random", some_inputs(samples), replicas, batch_size=batch_size)
    last = partition.steps_per_epoch - 1
    sizes = samples, replicas, batch_size
    assert Clusters().steps_per_epoch(*sizes) == partition.steps_per_epoch
    assert Clusters().in_last_step(*sizes) == sum(partition.size(last, replica) > 0 for replica in range(replicas))
    plain = ShuffledPartition(samples, replicas, batch_size, 0)
    busy = sum(plain.size(plain.steps_per_epoch - 1, replica) > 0 for replica in range(replicas))
    assert Shuffled().in_last_step(*sizes) == busy


@pytest.mark.parametrize("seed", range(5))
def test_samples_of_a_part_are_closer_than_those_of_a_random_one(seed):
    """k-means that is balanced afterwards is better than first come, first served, on these blobs."""
    inputs = some_inputs(200, seed)
    spread = {method: inertia(inputs, owned(dealt(method, inputs, 4, seed))) for method in METHODS}
    assert spread["balanced"] < 0.8 * spread["random"]
    assert spread["first_come"] < spread["random"]


def test_digits_fall_into_closer_parts_than_random_ones():
    inputs = Digits(limit=400).load()[0].inputs
    assert isinstance(inputs, Tensor)
    spread = {method: inertia(inputs.flatten(1), owned(dealt(method, inputs, 8))) for method in METHODS}
    assert spread["balanced"] < 0.8 * spread["random"]
    assert spread["balanced"] < spread["first_come"] < spread["random"]


# -- the pieces


def test_distances_are_those_of_a_plain_loop(monkeypatch):
    monkeypatch.setattr("paceline.tasks.clusters._AT_ONCE", 7)  # so that samples come in several pieces
    inputs, centres = some_inputs(11).view(11, 3, 1), some_inputs(4, seed=1).double()
    expected = [[float(((x.flatten().double() - c) ** 2).sum()) for c in centres] for x in inputs]
    assert distances(inputs, centres) == pytest.approx(np.array(expected), abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_k_means_is_lloyds_algorithm_of_sklearn(seed):
    inputs = some_inputs(150, seed)
    begin = inputs[torch.tensor([3, 40, 77, 120])].double()
    oracle = cast(Any, KMeans)(4, init=begin.numpy(), n_init=1, max_iter=100, tol=0, algorithm="lloyd").fit(
        inputs.double()
    )
    assert kmeans(inputs, begin, 100).numpy() == pytest.approx(oracle.cluster_centers_, abs=1e-9)


def test_k_means_makes_no_more_passes_than_it_may():
    inputs, begin = some_inputs(150), some_inputs(4, seed=9).double()
    once = kmeans(inputs, begin, 1)
    labels = ((inputs.double()[:, None] - begin) ** 2).sum(2).argmin(1)
    own = [inputs[labels == j].double() for j in range(4)]
    expected = torch.stack([mine.mean(0) if len(mine) else begin[j] for j, mine in enumerate(own)])
    assert torch.allclose(once, expected)
    assert not torch.equal(once, kmeans(inputs, begin, 50))


@pytest.mark.parametrize("method", ["first_come", "random"])
def test_passes_are_of_k_means_alone(method):
    with pytest.raises(ConfigError, match=rf"^partition\.passes=7: are of k-means, and partition\.method={method}"):
        Clusters(method, passes=7)


def test_a_centre_that_is_nearest_to_no_sample_stays():
    inputs = torch.tensor([[0.0], [1.0], [2.0]])
    begin = torch.tensor([[1.0], [1.0], [50.0]], dtype=torch.float64)
    assert kmeans(inputs, begin, 10).tolist() == [[1.0], [1.0], [50.0]]


def balanced_by_moves(far: np.ndarray) -> list[int]:
    """The paper's loop: while a part is too large, its furthest sample goes to the nearest part that has room."""
    labels = [min(range(len(row)), key=lambda j: row[j]) for row in far]
    counts = [labels.count(j) for j in range(far.shape[1])]
    by_size = sorted(range(len(counts)), key=lambda j: -counts[j])
    most = {j: len(far) // len(counts) + (place < len(far) % len(counts)) for place, j in enumerate(by_size)}
    for part in range(len(counts)):
        while counts[part] > most[part]:
            mine = [i for i, label in enumerate(labels) if label == part]
            sample = max(mine, key=lambda i: far[i, part])
            open_to = [j for j in range(len(counts)) if counts[j] < most[j]]
            target = min(open_to, key=lambda j: far[sample, j])
            labels[sample] = target
            counts[part] -= 1
            counts[target] += 1
    return labels


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 1000))
def test_balance_is_the_papers_loop(samples, parts, seed):
    far = np.random.default_rng(seed).random((max(samples, parts), parts)) ** np.arange(1, parts + 1)
    assert balanced(far).tolist() == balanced_by_moves(far)


def test_what_is_balanced_already_stays_with_its_nearest_centres():
    far = np.array([[0.0, 1], [1, 0], [0.1, 2], [3, 0.2], [0.3, 0.4]])
    assert balanced(far).tolist() == [0, 1, 0, 1, 0]


def test_who_comes_first_takes_the_nearest_centre_that_has_room():
    far = np.array([[0.0, 1, 2]] * 7)
    assert first_come(far).tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert first_come(far[:2, :2]).tolist() == [0, 1]


@pytest.mark.parametrize("at_once", [2**22, 7], ids=["one piece", "pieces"])
def test_the_centre_of_a_part_is_the_mean_of_its_samples(monkeypatch, at_once):
    monkeypatch.setattr("paceline.tasks.clusters._AT_ONCE", at_once)
    inputs = some_inputs(10).view(10, 3, 1)
    parts = [torch.tensor([1, 4]), torch.tensor([0, 2, 3, 5, 6, 7, 8, 9])]
    found = centres_of(inputs, parts)
    assert found.shape == (2, 3, 1) and found.dtype == torch.float32
    assert torch.allclose(found, torch.stack([inputs[part].mean(0) for part in parts]))


# -- what is refused


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (DataSpec(input_shape=(8,), input_dtype=torch.int64, classes=4), "tokens"),
        (DataSpec(input_shape=(2, 8), input_dtype=torch.float64, classes=2, features=100), "sparse"),
        (DataSpec(classes=2, inputs=(Field((2,)), Field((3,)))), "several inputs"),
    ],
)
def test_samples_that_have_no_distances_are_refused(spec, why):
    with pytest.raises(ConfigError, match=rf"partition.method=balanced: .*{why}.*partition.method=random"):
        Clusters().check(spec, 2)
    Clusters("random").check(spec, 2)


def test_fewer_samples_than_replicas_are_refused():
    with pytest.raises(ConfigError, match=r"partition=clusters: 5 replicas .* 4 samples"):
        Clusters().check(DataSpec(input_shape=(3,), classes=2, train_size=4), 5)


@pytest.mark.parametrize("method", ["balanced", "first_come"])
def test_samples_that_are_read_when_they_are_wanted_are_refused(method):
    with pytest.raises(ConfigError, match=rf"partition.method={method}: .*read when they are wanted"):
        Clusters(method).deal(torch.empty(9, device="meta"), 2, 4, 0, None)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_input_that_is_no_number_is_refused(bad):
    inputs = some_inputs(20)
    inputs[7, 1] = bad
    with pytest.raises(ConfigError, match="NaN or infinite"):
        dealt("balanced", inputs, 3)
