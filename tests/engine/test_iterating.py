"""k-means and PCA as whole runs: the same for any workers and partition, against scikit-learn; what is refused."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.decomposition import PCA as SklearnPCA
from torch import Tensor

from paceline import engine
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine.base.errors import WorkerFailedError
from paceline.engine.callbacks.purity import purity
from paceline.tasks.data.digits import Digits
from paceline.tasks.models.kmeans import KMeans
from paceline.verify import verify

QUIET = ["tracking=none", "checkpoint.every=0"]
VIRTUAL = [*QUIET, "hardware=virtual"]
KMEANS, PCA = ["experiment=kmeans", "model.k=6", "data.limit=300", "steps=5"], ["experiment=pca", "model.k=4"]
ENTRIES = 6 * 64 + 6


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(root: Path, *overrides: str, **how: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    result = engine.run(list(overrides), root=root, quiet=True, **how)
    assert result is not None and result.summary["status"] == "completed"
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary


def rows(limit: int | None = None, test: bool = False) -> np.ndarray:
    return lone(Digits(limit).load()[test].samples).flatten(1).double().numpy()


def by_scikit_learn() -> SklearnKMeans:
    """Five steps from the run's start."""
    data = Digits(300)
    torch.manual_seed(0)
    begun = KMeans(data.spec, 6)
    begun.begin(data.load()[0])
    start = begun.centres.detach().double().numpy()
    return cast(Any, SklearnKMeans)(6, init=start, n_init=1, max_iter=5, tol=0, algorithm="lloyd").fit(rows(300))


WAYS = {
    "alone": ["strategy=single", "hardware.workers=1"],
    "two": ["hardware.workers=2", "sync=bsp_naive"],
    "three": ["hardware.workers=3", "accumulate=2", "collective=ring"],
    "by label": ["hardware.workers=4", "partition=by_label"],
    "dirichlet": ["hardware.workers=3", "partition=dirichlet", "partition.alpha=0.1"],
    "server": ["hardware.workers=3", "partition=dirichlet", "sync=parameter_server"],
}


@pytest.mark.parametrize("way", WAYS)
def test_any_workers_and_partition_find_scikit_learns_centres_and_send_what_is_stated(root: Path, way: str) -> None:
    weights, summary = trained(root, *VIRTUAL, *KMEANS, *WAYS[way])
    theirs = by_scikit_learn()
    np.testing.assert_allclose(weights["centres"].numpy(), theirs.cluster_centers_, atol=1e-5)
    test = rows(test=True)
    spread = ((test - rows(300).mean(axis=0)) ** 2).sum()
    assert summary["r2"] == pytest.approx(1 + theirs.score(test) / spread, abs=1e-5)
    assert summary["loss"] == pytest.approx(-theirs.score(test) / 360, rel=1e-5)
    sent = summary["wire"]["bytes_per_step"]
    assert sent == summary["predicted"]["bytes_per_step"]
    if way != "server":
        replicas = summary["workers"]
        assert sent == pytest.approx(2 * (replicas - 1) / replicas * 4 * ENTRIES)


@pytest.mark.parametrize("way", ["alone", "by label", "server"])
def test_the_components_of_any_workers_span_those_of_scikit_learn(root: Path, way: str) -> None:
    weights, summary = trained(root, *VIRTUAL, *PCA, *WAYS[way], "steps=60", "evaluate.every=60")
    theirs: Any = SklearnPCA(4, svd_solver="full").fit(rows())
    w, v = weights["components"].double().numpy(), theirs.components_.T
    assert np.linalg.norm(w - v @ (v.T @ w), 2) < 1e-5  # the sine of the largest angle; float32 rounds to 6e-8 a number
    np.testing.assert_allclose(weights["mean"].numpy(), theirs.mean_, atol=1e-6)
    test = rows(test=True)
    lost = ((test - theirs.inverse_transform(theirs.transform(test))) ** 2).sum()
    assert summary["r2"] == pytest.approx(1 - lost / ((test - theirs.mean_) ** 2).sum(), abs=1e-5)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["data_parallel", "torch_ddp"])
def test_processes_find_them_too_and_a_resumed_run_ends_with_the_same_bits(
    root: Path, fork_server: None, strategy: str
) -> None:
    shared = ["tracking=none", *KMEANS, f"strategy={strategy}", "hardware.workers=2", "checkpoint.every_steps=2"]
    whole, _ = trained(root, *shared, name="whole")
    np.testing.assert_allclose(whole["centres"].numpy(), by_scikit_learn().cluster_centers_, atol=1e-5)
    trained(root, *shared, "steps=2", name="half")
    resumed, _ = trained(root, "steps=5", resume="half")
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_given_weights_take_the_place_of_the_start(root: Path) -> None:
    """From samples of which none is as near to two of them: pixels are whole numbers, and the first six leave a tie."""
    given = rows(12)[6:]
    distances = np.sort(((rows(300)[:, None] - given) ** 2).sum(2), axis=1)
    assert (distances[:, 1] - distances[:, 0]).min() > 1e-3
    start = {"centres": torch.from_numpy(given).float(), "shares": torch.zeros(6)}
    safetensors.torch.save_file(start, root / "start.safetensors")
    weights, _ = trained(root, *VIRTUAL, *KMEANS, "hardware.workers=2", "weights=start.safetensors")
    theirs = cast(Any, SklearnKMeans)(6, init=given, n_init=1, max_iter=5, tol=0, algorithm="lloyd").fit(rows(300))
    np.testing.assert_allclose(weights["centres"].numpy(), theirs.cluster_centers_, atol=1e-5)


@pytest.mark.dist
def test_what_only_the_data_show_to_be_wrong_is_refused_by_its_key_alone(root: Path, fork_server: None) -> None:
    """Nothing is said of a run to go on with or to repeat: there was none."""
    np.savez(root / "alike.npz", inputs=np.ones((40, 3), np.float32), targets=np.zeros(40, np.int64))
    with pytest.raises(WorkerFailedError) as caught:
        trained(root, *VIRTUAL, "experiment=kmeans", "data=arrays", "data.path=alike.npz", "data.classes=2")
    assert caught.value.exit_code == 2 and caught.value.details == []
    assert str(caught.value) == (
        "model.k=10: each centre begins in a sample of its own, and of the 32 samples that centres are drawn from 31 "
        "repeat another one. Choose model.k of 1."
    )


def test_targets_that_are_numbers_are_not_looked_at(root: Path) -> None:
    weights, summary = trained(root, *VIRTUAL, *KMEANS[:2], "data=diabetes", "steps=4", "hardware.workers=2")
    assert weights["centres"].shape == (6, 10) and 0.2 < summary["r2"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [KMEANS[:3], PCA], ids=["k-means", "PCA"])
def test_verify_finds_them_equal_to_serial_training(root: Path, chosen: list[str]) -> None:
    found = verify([*VIRTUAL, *chosen], steps=2, workers=3, only=["data_parallel"], every=True)
    passed = {word for row in found.rows if row.word == "pass" for word in row.overrides}
    assert found.passed and passed >= {"sync=bsp", "sync=bsp_naive", "sync=parameter_server"}


# -- purity


def test_purity_counts_the_most_frequent_label_of_each_cluster() -> None:
    """Manning, Raghavan and Schuetze, figure 16.4: (5 + 4 + 3) / 17."""
    clusters = torch.tensor([0] * 6 + [1] * 6 + [2] * 5)
    labels = torch.tensor([0] * 5 + [1] + [1] * 4 + [0, 2] + [2] * 3 + [0] * 2)
    assert purity(clusters, labels) == pytest.approx(12 / 17)
    assert purity(torch.arange(17), labels) == 1


@pytest.mark.slow
def test_purity_is_recorded_and_wants_clusters_and_labels(root: Path) -> None:
    _, summary = trained(root, *VIRTUAL, *KMEANS, "callbacks=[purity]", "hardware.workers=2")
    theirs = by_scikit_learn()
    found, labels = theirs.predict(rows(test=True)), Digits().load()[1].targets.numpy()
    most = sum(max(np.bincount(labels[found == j])) for j in set(found))
    assert summary["metrics"]["purity"] == pytest.approx(most / 360)
    for overrides, said in (
        (PCA, "looks at clusters"),
        ([*KMEANS[:2], "data=diabetes"], "counts a label for each sample"),
    ):
        with pytest.raises(ConfigError, match=f"^callbacks.purity: {said}"):
            engine.prepare([*VIRTUAL, *overrides, "callbacks=[purity]"]).plan()


# -- what does not go together

REFUSED = [
    (["optimizer=sgd"], "optimizer=sgd: model=kmeans has a step of its own. Choose optimizer=lloyd"),
    (["optimizer=power_iteration"], "optimizer=power_iteration: model=kmeans .* Choose optimizer=lloyd"),
    (["model=pca"], "optimizer=lloyd: model=pca has a step of its own. Choose optimizer=power_iteration"),
    (["model=mlp"], "task=reconstruction: is for models that put out squared distances.*model=mlp does not"),
    (["task=cross_entropy"], "task=cross_entropy: learns targets, and model=kmeans learns of samples alone"),
    (["model=mlp", "task=cross_entropy"], "optimizer=lloyd: is the step of one model, which model=mlp is not"),
    (["sync=local_sgd"], "model=kmeans: steps with the mean gradient of all samples, and"),
    (["sync=asp"], "model=kmeans: steps with the mean gradient of all samples, and"),
    (["sync=backup_workers"], "model=kmeans: steps with the mean gradient of all samples, and"),
    (["compress=topk"], "model=kmeans: steps with the mean gradient of all samples, and"),
    (["compress=bf16", "sync=parameter_server"], "model=kmeans: steps with the mean gradient of all samples, and"),
    (["aggregate=median"], "model=kmeans: steps with the mean gradient of all samples, and"),
    (["sync=parameter_server", "sync.servers=2"], r"model=kmeans: steps with all of its parameters together, and"),
    (["sync.shard=optimizer"], r"sync\.shard=optimizer: .*Lloyd is not element-wise"),
    (["strategy=tensor"], "model=kmeans: steps with all of its parameters together, and"),
    (["hardware=local", "strategy=torch_zero_optimizer"], "strategy=torch_zero_optimizer: shares out the parameters"),
    (["hardware=local", "strategy=zero"], "Lloyd is not element-wise"),
    (["callbacks=[noise_scale]"], r"callbacks\.noise_scale: tells the batch of steps along a gradient.*leave it out"),
    (["schedule=cosine"], "schedule=cosine: moves the rate lr of an optimizer, and Lloyd has none"),
    *(
        ([f"{group}={name}"], f"{group}={name}: model=kmeans makes its step .* Choose {group}={usual}")
        for group, name, usual in (
            ("clip", "norm", "none"),
            ("precision", "bf16", "fp32"),
            ("average", "ema", "none"),
            ("attack", "sign_flip", "none"),
            ("privacy", "dp_sgd", "none"),
            ("adversarial_training", "pgd", "none"),
        )
    ),
    (["adapt=pruned"], "adapt=pruned: model=kmeans makes its step"),
    (["evaluate.attack=fgsm"], r"evaluate\.attack=fgsm: has models err in their classes"),
    (["data=text"], "model=kmeans takes numbers; these data are tokens. Choose model=gpt"),
    (["model.k=1438"], r"model\.k=1438: .* there are 1,437 training samples"),
    (["optimizer.lr=1"], r"optimizer\.lr"),
    (
        ["model=pca", "optimizer=power_iteration", "data.limit=5"],
        r"model\.k=10: there are 5 training samples.*Choose 5 or less",
    ),
]


def test_small_batches_that_make_centres_jump_are_noted() -> None:
    chosen = [*VIRTUAL, "experiment=kmeans", "hardware.workers=4", "measure.after=0"]

    def notes(*overrides: str) -> list[str]:
        return engine.prepare([*chosen, *overrides]).plan().notes

    [note] = notes("batch_size=32")
    assert note.startswith("optimizer.running=false: a step makes a centre the mean of its own of 128 samples alone")
    assert notes("batch_size=32", "optimizer.running=true") == notes("batch_size=360", "epochs=20") == []


@pytest.mark.parametrize(("overrides", "said"), REFUSED, ids=[" ".join(overrides) for overrides, _ in REFUSED])
def test_what_does_not_go_with_such_a_step_is_refused_by_name(root: Path, overrides: list[str], said: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=said) as caught:
        engine.prepare([*VIRTUAL, "experiment=kmeans", "hardware.workers=4", *overrides]).plan()
    assert getattr(caught.value, "exit_code", None) == 2
