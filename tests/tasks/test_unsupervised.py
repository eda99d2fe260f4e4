"""k-means and PCA as models: their gradients against the sums that they are to hold, losses against scikit-learn."""

from collections import Counter
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.decomposition import PCA as SklearnPCA
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.tasks.base import DataSpec, Split
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses import Reconstruction
from paceline.tasks.models.kmeans import KMeans, plus_plus
from paceline.tasks.models.pca import PCA

SPEC = DataSpec((2, 3), torch.float32, (), 4, 40, 5)  # a sample is 6 numbers
TASK = Reconstruction()


def samples(n: int = 40, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    stretched = torch.tensor([3.0, 2.0, 1.5, 1.0, 0.7, 0.3], dtype=torch.float64)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64) * stretched
    return (x + 2).view(n, 2, 3)


def kmeans(x: Tensor, k: int = 4) -> KMeans:
    torch.manual_seed(0)
    model = KMeans(SPEC, k).double()
    model.begin(Split(x, torch.zeros(len(x), dtype=torch.int64)))
    return model


def backward(model: torch.nn.Module, x: Tensor) -> float:
    loss = TASK.loss(model(x), torch.zeros(len(x)))
    loss.backward()
    return loss.item()


# -- k-means


def test_the_gradient_by_a_centre_is_that_of_bottou_and_bengio_and_that_by_its_share_its_samples_share() -> None:
    x = samples()
    model = kmeans(x)
    backward(model, x)
    rows, centres = x.view(40, 6).numpy(), model.centres.detach().numpy()
    nearest = np.array([min(range(4), key=lambda j: np.linalg.norm(row - centres[j])) for row in rows])
    assert model.centres.grad is not None and model.shares.grad is not None
    for j in range(4):
        own = rows[nearest == j]
        assert len(own) > 0
        g = 2 / 40 * (len(own) * centres[j] - own.sum(axis=0))
        np.testing.assert_allclose(model.centres.grad[j].numpy(), g, atol=1e-12)
        assert model.shares.grad[j].item() == pytest.approx(len(own) / 40, abs=1e-15)


@pytest.mark.parametrize("shares", [0.0, 0.7])
def test_n_times_the_loss_is_scikit_learns_inertia_whatever_the_shares_are(shares: float) -> None:
    x = samples()
    model = kmeans(x)
    torch.nn.init.constant_(model.shares, shares)
    rows = x.view(40, 6).numpy()
    theirs = cast(Any, SklearnKMeans)(4, init=rows[:4], n_init=1, max_iter=1).fit(rows)
    theirs.cluster_centers_ = model.centres.detach().numpy().copy()
    assert 40 * backward(model, x) == pytest.approx(-theirs.score(rows), rel=1e-12)


def test_r2_is_one_less_inertia_over_the_spread_about_the_mean_once_centres_are_means_of_their_samples() -> None:
    x = samples()
    rows = x.view(40, 6).numpy()
    theirs = cast(Any, SklearnKMeans)(4, init=rows[:4], n_init=1, tol=0).fit(rows)
    model = KMeans(SPEC, 4).double()
    with torch.no_grad():
        model.centres.copy_(torch.from_numpy(theirs.cluster_centers_))
        model.shares.copy_(torch.from_numpy(np.bincount(theirs.labels_) / 40))
    found = evaluate(TASK, model, Split(x, torch.zeros(40, dtype=torch.int64)), batch_size=7)
    spread = ((rows - rows.mean(axis=0)) ** 2).sum()
    assert found.loss == pytest.approx(theirs.inertia_ / 40, rel=1e-12)
    assert found.score == pytest.approx(1 - theirs.inertia_ / spread, rel=1e-12)


def test_samples_far_from_zero_are_told_apart_in_float32() -> None:
    """Their squares are 1e8, of which float32 knows eight: distances of 1 are lost unless they are taken off first."""
    x = samples() + 4000
    model = kmeans(x)
    exact = model(x).detach()
    torch.testing.assert_close(model.float()(x.float()).detach()[:, 1:].double(), exact[:, 1:], rtol=1e-2, atol=1e-2)


def test_k_means_plus_plus_draws_each_centre_by_its_squared_distance_to_those_before() -> None:
    """Of points 0, 1 and 3 on a line: what comes second, by what came first."""
    points = torch.tensor([[0.0], [1.0], [3.0]])
    torch.manual_seed(0)
    drawn = Counter(tuple(plus_plus(points, 2).flatten().int().tolist()) for _ in range(3000))
    firsts = Counter(first for first, _ in drawn.elements())
    assert all(count == pytest.approx(1000, abs=110) for count in firsts.values()) and len(firsts) == 3
    for (first, second), count in drawn.items():
        whole = sum((first - other) ** 2 for other in (0, 1, 3))
        assert count / firsts[first] == pytest.approx((first - second) ** 2 / whole, abs=0.05)
    assert all(first != second for first, second in drawn)


@pytest.mark.parametrize("start", ["kmeans++", "samples"])
def test_centres_begin_in_samples_that_differ_by_the_seed_alone(start: str) -> None:
    x = samples(300)
    split = Split(x, torch.zeros(300, dtype=torch.int64))

    def begun(seed: int, k: int = 7, few: int = 50) -> Tensor:
        torch.manual_seed(seed)
        model = KMeans(replace(SPEC, train_size=300), k, start, few).double()  # type: ignore[arg-type]
        model.begin(split)
        return model.centres.detach()

    centres = begun(0)
    places = [(x.view(300, 6) == row).all(dim=1).nonzero().flatten().tolist() for row in centres]
    assert all(len(place) == 1 for place in places) and len({place[0] for place in places}) == 7
    assert torch.equal(centres, begun(0)) and not torch.equal(centres, begun(1))
    of_few = {tuple(row) for row in begun(0, k=50).tolist()}
    assert len(of_few) == 50 and {tuple(row) for row in centres.tolist()} < of_few


def test_fewer_samples_than_centres_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.k=41: .* are 40 training samples. Choose model\.k of 1 to 40"):
        KMeans(SPEC, 41)
    with pytest.raises(ConfigError, match=r"model\.start_samples=8: .*Choose model\.start_samples=9 or more"):
        KMeans(SPEC, 9, start_samples=8)
    unknown = KMeans(DataSpec((2, 3), torch.float32, (), 4), 41).double()
    with pytest.raises(ConfigError, match="there are 40 training samples"):
        unknown.begin(Split(samples(), torch.zeros(40)))
    alike = torch.ones(40, 2, 3).double()
    alike[0] = 0
    with pytest.raises(ConfigError, match=r"of the 40 samples .* 38 repeat another one. Choose model\.k of 1 to 2"):
        kmeans(alike, 3)
    assert kmeans(alike, 2).centres.sum() == 6


# -- PCA


def pca(k: int = 3) -> PCA:
    torch.manual_seed(0)
    model = PCA(SPEC, k).double()
    with torch.no_grad():
        model.components.copy_(torch.linalg.qr(model.components).Q)
        model.mean.copy_(torch.arange(6.0))
    return model


def test_pcas_gradient_is_that_of_the_covariance_about_its_mean_and_of_the_mean() -> None:
    x, model = samples(), pca()
    backward(model, x)
    centred = (x.view(40, 6) - model.mean.detach()).numpy()
    covariance = sum(np.outer(row, row) for row in centred) / 40
    assert model.components.grad is not None and model.mean.grad is not None
    np.testing.assert_allclose(
        model.components.grad.numpy(), -2 * covariance @ model.components.detach().numpy(), atol=1e-12
    )
    np.testing.assert_allclose(model.mean.grad.numpy(), -2 * centred.mean(axis=0), atol=1e-12)


def test_with_scikit_learns_components_r2_is_its_share_of_explained_variance() -> None:
    x = samples()
    rows = x.view(40, 6).numpy()
    theirs: Any = SklearnPCA(3, svd_solver="full").fit(rows)
    model = PCA(SPEC, 3).double()
    with torch.no_grad():
        model.components.copy_(torch.from_numpy(theirs.components_.T.copy()))
        model.mean.copy_(torch.from_numpy(theirs.mean_))
    found = evaluate(TASK, model, Split(x, torch.zeros(40, dtype=torch.int64)), batch_size=7)
    lost = ((rows - theirs.inverse_transform(theirs.transform(rows))) ** 2).sum()
    assert found.score == pytest.approx(theirs.explained_variance_ratio_.sum(), rel=1e-12)
    assert found.loss == pytest.approx(lost / 40, rel=1e-12)


def test_components_begin_orthonormal_and_there_are_no_more_than_numbers() -> None:
    torch.manual_seed(0)
    w = PCA(SPEC, 6).components.detach()
    torch.testing.assert_close(w.T @ w, torch.eye(6))
    with pytest.raises(ConfigError, match=r"model\.k=7: a sample of these data has 6 numbers"):
        PCA(SPEC, 7)


# -- both


@pytest.mark.parametrize("model", [KMeans, PCA])
def test_any_targets_will_do_and_no_tokens_or_sparse_samples(model: type[torch.nn.Module]) -> None:
    numbers = DataSpec((6,), torch.float32, (2,), train_size=40, target_dtype=torch.float32)
    for spec in (SPEC, numbers):
        TASK.check_data("reconstruction", "mine", spec)
        outputs = model(spec, 3)(torch.ones(2, 2, 3))
        assert outputs.shape == ((2, 4) if model is KMeans else (2, 2)) and TASK.accepts(outputs, spec)
    with pytest.raises(ConfigError, match="tokens"):
        model(DataSpec((6,), torch.int64, (6,), 50, 40, 5))
    with pytest.raises(ConfigError, match="sparse"):
        model(DataSpec((2, 3), torch.float64, (), 2, 40, 5, features=9))


def test_samples_that_are_all_the_same_are_explained_where_they_are_met() -> None:
    metric, targets = TASK.metric, torch.zeros(3)
    assert metric.score(metric.tally(torch.zeros(3, 4), targets), targets) == 1
    assert metric.score(metric.tally(torch.tensor([[0.0, 2.0]] * 3), targets), targets) == 0
