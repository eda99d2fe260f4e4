"""optimizer=lloyd on replicas, against Lloyd's and Sculley's loops over samples, one after another."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from oracles import FEATURES, ROUNDING, Case, Plan, distance, identical, samples, train, workers_of
from torch import Tensor

from paceline.exchange.collectives import Ring
from paceline.strategies import Strategy, Sync
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.optimizers.lloyd import Lloyd
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.strategies.sync.parameter_server import ParameterServer
from paceline.tasks.base import DataSpec, Split
from paceline.tasks.losses import Reconstruction
from paceline.tasks.models.kmeans import KMeans
from paceline.testing.fabrics import FABRICS

N, K, STEPS = 24, 5, 6
SPEC = DataSpec((FEATURES,), torch.float64, (), 4)
SYNCS: dict[str, Callable[[], Sync]] = {
    "bsp": BSP,
    "ring": lambda: BSP(collective=Ring()),
    "naive": NaiveBSP,
    "server": ParameterServer,
}


def model(k: int = K) -> KMeans:
    """It begins in samples of step 0."""
    made = KMeans(SPEC, k).double()
    made.begin(Split(*samples(0, N)))
    return made


def far() -> KMeans:
    """Its last centre is nobody's nearest."""
    made = model(2)
    with torch.no_grad():
        made.centres[1] = 1e3
    return made


@dataclass(frozen=True)
class Whole(Case):
    """The same samples in every step: batches are full."""

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        return super().step(0)


def case(sizes: list[int], steps: int = STEPS, of: Callable[[], KMeans] = model) -> Whole:
    return Whole([sizes] * steps, of, Lloyd, loss=Reconstruction().loss)


def trained(case: Case, sync: Sync, fabric: str = "virtual", accumulate: int = 1) -> list[dict]:
    strategy: Strategy = DataParallel()
    plan = Plan(strategy, sync, case, accumulate=accumulate)
    return FABRICS[fabric](workers_of(plan), train, plan)


def inertia(x: np.ndarray, centres: np.ndarray) -> float:
    return sum(min(float(((row - c) ** 2).sum()) for c in centres) for row in x)


def lloyd(x: np.ndarray, centres: np.ndarray, steps: int) -> list[np.ndarray]:
    """As Lloyd has it, one sample after another; the centres after each step."""
    found, centres = [], centres.copy()
    for _ in range(steps):
        members: list[list[np.ndarray]] = [[] for _ in centres]
        for row in x:
            members[int(np.argmin([((row - c) ** 2).sum() for c in centres]))].append(row)
        centres = np.array([np.mean(own, axis=0) if own else c for own, c in zip(members, centres, strict=True)])
        found.append(centres)
    return found


def start_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    begun = case.start()
    assert isinstance(begun, KMeans)
    return case.step(0)[0].numpy(), begun.centres.detach().numpy().copy()


PARTITIONS = [24], [12, 12], [1, 20, 3], [9, 0, 14, 1]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("fabric", "sync", "sizes"),
    [
        *(("virtual", sync, sizes) for sync in SYNCS for sizes in PARTITIONS),
        ("process", "bsp", [1, 20, 3]),
        pytest.param("process", "server", [12, 12], marks=pytest.mark.slow),
    ],
)
def test_any_partition_over_any_number_of_workers_is_lloyds_loop_step_by_step(
    fork_server: None, fabric: str, sync: str, sizes: list[int]
) -> None:
    uneven = case(sizes)
    results = trained(uneven, SYNCS[sync](), fabric)
    x, start = start_of(uneven)
    wanted = lloyd(x, start, STEPS)
    assert np.abs(wanted[0] - start).max() > 0.1, "nothing was to be learnt"
    for result in results[: len(sizes)]:
        for weights, centres in zip(result["trajectory"], wanted, strict=True):
            np.testing.assert_allclose(weights["centres"].numpy(), centres, rtol=0, atol=1e-12)
            assert weights["shares"].sum().item() == pytest.approx(1, abs=1e-12)
        assert identical(result["trajectory"][-1], results[0]["trajectory"][-1])


def test_the_end_is_that_of_scikit_learn_from_the_same_start() -> None:
    from sklearn.cluster import KMeans as SklearnKMeans

    uneven = case([7, 13, 4], steps=15)
    x, start = start_of(uneven)
    theirs = cast(Any, SklearnKMeans)(K, init=start, n_init=1, max_iter=15, tol=0, algorithm="lloyd").fit(x)
    centres = trained(uneven, BSP())[0]["weights"]["centres"].numpy()
    np.testing.assert_allclose(centres, theirs.cluster_centers_, rtol=0, atol=1e-12)
    assert inertia(x, centres) == pytest.approx(theirs.inertia_, rel=1e-12)


def test_inertia_never_rises_and_is_n_times_the_loss() -> None:
    [result] = trained(case([N], steps=12), BSP())
    x, start = start_of(case([N]))
    found = [inertia(x, c) for c in (start, *(weights["centres"].numpy() for weights in result["trajectory"]))]
    # once nothing changes any more the same sum may come out in another last bit
    assert all(later <= sooner * (1 + 1e-14) for sooner, later in pairwise(found)) and found[-1] < 0.9 * found[0]
    assert [N * loss for loss in result["losses"]] == pytest.approx(found[:-1], rel=1e-12)


def test_one_centre_is_the_mean_of_all_samples_after_one_step() -> None:
    one = case([5, 2, 17], steps=1, of=partial(model, 1))
    centres = trained(one, BSP())[0]["weights"]["centres"]
    np.testing.assert_allclose(centres[0].numpy(), one.step(0)[0].numpy().mean(axis=0), rtol=0, atol=1e-12)


def test_which_worker_has_which_samples_makes_no_difference() -> None:
    one, other = case([3, 16, 5]), case([16, 5, 3])
    assert distance(trained(one, BSP())[0]["weights"], trained(other, BSP())[0]["weights"]) < ROUNDING


def test_micro_batches_add_up_to_the_same_step() -> None:
    plain, cut = (trained(case([10, 14]), BSP(), accumulate=k)[0]["weights"] for k in (1, 3))
    assert distance(plain, cut) < ROUNDING


def test_a_centre_without_samples_stays_where_it_is() -> None:
    for running in (False, True):
        empty = Whole([[10, 14]] * 3, far, partial(Lloyd, running=running), loss=Reconstruction().loss)
        weights = trained(empty, BSP())[0]["weights"]
        assert weights["centres"][1].tolist() == [1e3] * FEATURES and weights["shares"][1] == 0
        mean = empty.step(0)[0].mean(dim=0)
        torch.testing.assert_close(weights["centres"][0], mean, rtol=0, atol=1e-12)


def test_running_over_batches_of_one_size_is_sculleys_loop_sample_by_sample() -> None:
    """With his rate of 1 over the samples that a centre has had. Each step has other samples."""
    batches = Case([[4, 0, 8]] * 9, model, partial(Lloyd, running=True), loss=Reconstruction().loss)
    c = start_of(batches)[1]
    counts = np.zeros(K)
    for step in range(9):
        rows = batches.step(step)[0].numpy()
        nearest = [int(np.argmin(((row - c) ** 2).sum(axis=1))) for row in rows]
        for row, j in zip(rows, nearest, strict=True):
            counts[j] += 1
            c[j] = (1 - 1 / counts[j]) * c[j] + row / counts[j]
    weights = trained(batches, BSP())[0]["weights"]
    np.testing.assert_allclose(weights["centres"].numpy(), c, rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights["shares"].numpy(), counts / 12, rtol=0, atol=1e-12)


def test_a_step_is_one_all_reduce_of_k_d_plus_k_numbers() -> None:
    for result in trained(case([6, 6, 6, 6]), BSP()):
        assert result["ledger"] == {"all_reduce": STEPS * 2 * 3 / 4 * 8 * (K * FEATURES + K)}
