"""optimizer=power_iteration on replicas, against orthogonal iteration in numpy and scikit-learn's components."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from oracles import FEATURES, ROUNDING, Case, Plan, distance, train, workers_of
from torch import Tensor

from paceline.strategies import Sync
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.optimizers.power_iteration import PowerIteration
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.strategies.sync.parameter_server import ParameterServer
from paceline.tasks.base import DataSpec
from paceline.tasks.losses import Reconstruction
from paceline.tasks.models.pca import PCA
from paceline.testing.fabrics import FABRICS

N, K = 24, 3
SPEC = DataSpec((FEATURES,), torch.float64, (), 4)
SYNCS: dict[str, type[Sync]] = {"bsp": BSP, "naive": NaiveBSP, "server": ParameterServer}


def model(k: int = K) -> PCA:
    return PCA(SPEC, k).double()


@dataclass(frozen=True)
class Whole(Case):
    """The same samples in every step, far from 0 and spread more along some axes than along others."""

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().step(0)
        return inputs * torch.tensor([4.0, 3.0, 2.0, 1.0, 0.5, 0.2], dtype=inputs.dtype) + 5, targets


def case(sizes: list[int], steps: int, of: Callable[[], PCA] = model) -> Whole:
    return Whole([sizes] * steps, of, PowerIteration, loss=Reconstruction().loss)


def trained(case: Case, sync: Sync, fabric: str = "virtual", accumulate: int = 1) -> list[dict]:
    plan = Plan(DataParallel(), sync, case, accumulate=accumulate)
    return FABRICS[fabric](workers_of(plan), train, plan)


def sine(one: np.ndarray, other: np.ndarray) -> float:
    """Of the largest principal angle between the spaces of orthonormal columns."""
    return float(np.linalg.norm(one - other @ (other.T @ one), 2))


PARTITIONS = [24], [12, 12], [1, 20, 3], [9, 0, 14, 1]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("fabric", "sync", "sizes"),
    [
        *(("virtual", sync, sizes) for sync in SYNCS for sizes in PARTITIONS),
        pytest.param("process", "bsp", [1, 20, 3], marks=pytest.mark.slow),
    ],
)
def test_any_partition_over_any_number_of_workers_is_orthogonal_iteration_step_by_step(
    fork_server: None, fabric: str, sync: str, sizes: list[int]
) -> None:
    """Of the covariance of all samples, centred, from the first step on."""
    uneven = case(sizes, steps=5)
    results = trained(uneven, SYNCS[sync](), fabric)
    x, begun = uneven.step(0)[0].numpy(), uneven.start()
    assert isinstance(begun, PCA)
    covariance, w = np.cov(x.T, bias=True), begun.components.detach().numpy()
    for step in range(5):
        q, r = np.linalg.qr(covariance @ w)
        w = q * np.sign(np.diag(r))
        for result in results[: len(sizes)]:
            weights = result["trajectory"][step]
            np.testing.assert_allclose(weights["components"].numpy(), w, rtol=0, atol=1e-12)
            np.testing.assert_allclose(weights["mean"].numpy(), x.mean(axis=0), rtol=0, atol=1e-12)


def test_angles_to_the_eigenvectors_go_to_zero_at_the_rate_of_their_eigenvalues() -> None:
    """|sin| <= C (lambda_{k+1} / lambda_k)^t, with C of the start."""
    several = case([7, 13, 4], steps=60)
    [result, *_] = trained(several, BSP())
    values, vectors = np.linalg.eigh(np.cov(several.step(0)[0].numpy().T, bias=True))
    leading, rate = vectors[:, ::-1][:, :K], values[::-1][K] / values[::-1][K - 1]
    angles = [sine(weights["components"].numpy(), leading) for weights in result["trajectory"]]
    assert angles[0] > 1e-2 and angles[-1] < 1e-12
    # sin <= tan, and tan theta_t <= (lambda_{k+1} / lambda_k)^t tan theta_0 (Golub and Van Loan, theorem 8.2.2)
    begun = several.start()
    assert isinstance(begun, PCA)
    first = sine(begun.components.detach().numpy(), leading)
    tangent = first / np.sqrt(1 - first**2)
    assert all(angle <= rate**t * tangent + 1e-12 for t, angle in enumerate(angles, start=1))


@pytest.mark.slow
def test_columns_come_to_scikit_learns_components_and_explain_as_much() -> None:
    from sklearn.decomposition import PCA as SklearnPCA

    several = case([7, 13, 4], steps=150)
    x = several.step(0)[0].numpy()
    theirs = SklearnPCA(K, svd_solver="full").fit(x)
    weights = trained(several, BSP())[0]["weights"]
    w = weights["components"].numpy()
    np.testing.assert_allclose(np.abs((w * theirs.components_.T).sum(axis=0)), 1, atol=1e-12)
    kept = np.var((x - x.mean(axis=0)) @ w, axis=0) / np.var(x, axis=0).sum()
    np.testing.assert_allclose(kept, theirs.explained_variance_ratio_, atol=1e-12)


def test_components_are_orthonormal_after_every_step_and_the_loss_never_rises() -> None:
    [result] = trained(case([N], steps=12), BSP())
    for weights in result["trajectory"]:
        w = weights["components"]
        torch.testing.assert_close(w.T @ w, torch.eye(K, dtype=w.dtype), rtol=0, atol=1e-12)
    losses = result["losses"][1:]  # those about the mean; the first is about 0
    assert all(later <= sooner + 1e-12 for sooner, later in pairwise(losses))
    assert losses[-1] < losses[0]


def test_all_components_lose_nothing() -> None:
    [result] = trained(case([N], steps=3, of=lambda: model(FEATURES)), BSP())
    assert abs(result["losses"][-1]) < 1e-12


def test_micro_batches_add_up_to_the_same_step() -> None:
    plain, cut = (trained(case([10, 14], 4), BSP(), accumulate=k)[0]["weights"] for k in (1, 3))
    assert distance(plain, cut) < ROUNDING
