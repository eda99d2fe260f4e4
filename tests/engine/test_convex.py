"""Convex models against scikit-learn's minima, and full-batch gradient descent, the same whoever has which samples."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline import engine
from paceline.batches import lone
from paceline.comm import Comm
from paceline.strategies import Batch
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.tasks.data.diabetes import Diabetes
from paceline.tasks.data.digits import Digits
from paceline.tasks.losses import BinaryCrossEntropy, CrossEntropy, Squared, SquaredHinge, Task
from paceline.tasks.partition import ByLabel, Dirichlet, Partitioner, Shuffled
from paceline.testing.fabrics import run_virtual
from paceline.tracking.run_directory import RunDirectory

QUIET = ["tracking=none", "checkpoint.every=0"]
DIGITS = ["data=digits", "data.limit=200"]
N = 200


def trained(root: Path, *overrides: str, on: str = "hardware=virtual") -> tuple[np.ndarray, np.ndarray, Path]:
    """Weights [outputs, features], biases [outputs], and the run's directory."""
    result = engine.run([*QUIET, on, *overrides], root=root, quiet=True)
    assert result is not None
    state = load_file(result.path / "model.safetensors")
    return state["output.weight"].double().numpy(), state["output.bias"].double().numpy(), result.path


def digits() -> tuple[np.ndarray, np.ndarray]:
    train, _ = Digits(limit=N).load()
    return lone(train.samples).flatten(1).double().numpy(), train.targets.numpy()


def nesterov(lr: float, steps: int, decay: float) -> list[str]:
    knobs = [f"optimizer.lr={lr}", "optimizer.momentum=0.95", "optimizer.nesterov=true"]
    return [*knobs, f"optimizer.weight_decay={decay}", f"epochs={steps}", f"evaluate.every={steps}"]


# -- scikit-learn's minima


def minimum(
    task: Task, x: np.ndarray, y: np.ndarray, outputs: int, decay: float, free: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(W, b) where the task's loss + decay / 2 |W|^2 is smallest, by L-BFGS in float64; `free`: without b in |W|^2."""
    layer, inputs, targets = nn.Linear(x.shape[1], outputs).double(), torch.from_numpy(x), torch.from_numpy(y)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    newton = torch.optim.LBFGS(
        layer.parameters(), max_iter=300, tolerance_grad=1e-9, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        newton.zero_grad()
        squares = layer.weight.square().sum() + (0 if free else layer.bias.square().sum())
        value = task.loss(layer(inputs), targets) + decay / 2 * squares
        value.backward()
        return value

    newton.step(objective)  # pyright: ignore[reportArgumentType]
    return layer.weight.detach().numpy(), layer.bias.detach().numpy()


def test_weight_decay_means_in_scikit_learns_terms_what_docs_convex_md_says() -> None:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.svm import LinearSVC

    rng, n, c = np.random.default_rng(0), 60, 0.3
    x = rng.normal(size=(n, 4))
    two = (x @ [1, -1, 0.5, 0] + rng.normal(size=n) + 0.7 > 0).astype(np.int64)
    three = np.digitize(x @ [1, -1, 0.5, 0] + rng.normal(size=n), [-1, 0.5])
    number = x @ [1.0, -1, 0.5, 0] + rng.normal(size=n) + 3

    ridge = Ridge(alpha=5.0).fit(x, number)
    w, b = minimum(Squared(), x, number, 1, 2 * 5.0 / n, free=True)
    np.testing.assert_allclose(np.append(w, b), np.append(ridge.coef_, ridge.intercept_), rtol=1e-6)

    for y, task, outputs, decay in (
        (three, CrossEntropy(), 3, 1 / (c * n)),
        (two, BinaryCrossEntropy(), 1, 1 / (c * n)),
        (two, CrossEntropy(), 2, 2 / (c * n)),
    ):
        logistic = LogisticRegression(C=c, tol=1e-10, solver="newton-cg").fit(x, y)
        w, b = minimum(task, x, y, outputs, decay, free=True)
        if task.targets == "labels" and outputs == 2:
            w, b = w[1:] - w[:1], b[1:] - b[:1]
        np.testing.assert_allclose(w, logistic.coef_, rtol=1e-5, atol=1e-7)
        shift = b.mean() - logistic.intercept_.mean() if outputs == 3 else 0
        np.testing.assert_allclose(b - shift, logistic.intercept_, rtol=1e-5, atol=1e-7)

    for y, outputs in ((three, 3), (two, 2)):
        svc = cast(Any, LinearSVC)(C=c, tol=1e-12, max_iter=100_000, dual=False).fit(x, y)
        w, b = minimum(SquaredHinge(), x, y, outputs, 1 / (c * n), free=False)
        of_each = slice(None) if outputs == 3 else slice(1, None)
        np.testing.assert_allclose(w[of_each], svc.coef_, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(b[of_each], svc.intercept_, rtol=1e-5, atol=1e-7)
        if outputs == 2:
            np.testing.assert_allclose(w[0], -w[1], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.0, 0.1, 2.0])
def test_ridge_regression_is_that_of_scikit_learn_with_alpha_n_decay_over_2(root: Path, decay: float) -> None:
    """1 / n |y - f|^2 + decay / 2 |w|^2 is |y - f|^2 + alpha |w|^2 over n, and neither regularises the intercept."""
    from sklearn.linear_model import Ridge

    train, _ = Diabetes().load()
    n = len(train)
    ridge = Ridge(alpha=n * decay / 2).fit(lone(train.samples).double().numpy(), train.targets.double().numpy())
    knobs = ["optimizer=sgd_free_biases", "optimizer.lr=0.35", "optimizer.momentum=0.85"]
    model = ["model=linear", "data=diabetes", "task=squared", "hardware.workers=3", "batch_size=353"]
    more = ["epochs=300" if decay == 0 else "epochs=150", "evaluate.every=1000"]
    w, b, _ = trained(root, *model, *knobs, f"optimizer.weight_decay={decay}", *more)
    np.testing.assert_allclose(w[0], ridge.coef_, atol=1e-4)
    assert b.item() == pytest.approx(ridge.intercept_, abs=1e-5)
    assert abs(ridge.intercept_) > 1e-3, "a regularised intercept would look the same"


@pytest.mark.slow  # many steps; ridge regression is tested
def test_logistic_regression_is_that_of_scikit_learn_with_c_of_1_over_n_decay(root: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    (x, y), decay = digits(), 0.5
    theirs = LogisticRegression(C=1 / (N * decay), tol=1e-10, max_iter=10_000).fit(x, y)
    model = ["model=logistic_regression", *DIGITS, "optimizer=sgd_free_biases", "batch_size=200"]
    w, b, _ = trained(root, *model, *nesterov(0.1, 400, decay))
    np.testing.assert_allclose(w, theirs.coef_, atol=1e-4)
    # the loss does not change when all biases do alike: they have the minimum in common up to a constant
    np.testing.assert_allclose(b - b.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=1e-4)


@pytest.mark.slow
def test_the_squared_hinge_loss_gives_the_linear_svc_of_scikit_learn_with_c_of_1_over_n_decay(root: Path) -> None:
    """Its sum is over samples, and its 1/2 |w|^2 has the intercept in it; one machine for each class."""
    from sklearn.svm import LinearSVC

    (x, y), decay = digits(), 0.2
    theirs = cast(Any, LinearSVC)(C=1 / (N * decay), tol=1e-10, max_iter=100_000, dual=False).fit(x, y)
    model = ["model=linear", "task=squared_hinge", *DIGITS, "batch_size=200"]
    w, b, _ = trained(root, *model, *nesterov(0.01, 500, decay))
    np.testing.assert_allclose(w, theirs.coef_, atol=2e-4)
    np.testing.assert_allclose(b, theirs.intercept_, atol=2e-4)


def hinge_objective(x: np.ndarray, signs: np.ndarray, w: np.ndarray, b: float, decay: float) -> float:
    """lambda / 2 (|w|^2 + b^2) + the mean hinge loss, of a two-class machine."""
    missed = np.maximum(0, 1 - signs * (x @ w + b))
    return float(decay / 2 * (w @ w + b * b) + missed.mean())


@pytest.mark.slow
def test_pegasos_comes_within_a_percent_of_the_minimum_that_linear_svc_finds_for_each_class(root: Path) -> None:
    from sklearn.svm import LinearSVC

    (x, y), decay = digits(), 0.3
    theirs: Any = LinearSVC(C=1 / (N * decay), loss="hinge", tol=1e-8, max_iter=1_000_000, random_state=0).fit(x, y)
    model = ["model=linear", "task=hinge", "task.multiclass=one_vs_rest", *DIGITS, "optimizer=pegasos"]
    more = [
        f"optimizer.weight_decay={decay}",
        "batch_size=20",
        "hardware.workers=2",
        "epochs=200",
        "evaluate.every=200",
    ]
    w, b, _ = trained(root, *model, *more)
    for r in range(10):
        signs = np.where(y == r, 1, -1)
        its = hinge_objective(x, signs, theirs.coef_[r], theirs.intercept_[r], decay)
        ours = hinge_objective(x, signs, w[r], b[r], decay)
        assert its * (1 - 1e-4) <= ours <= its * 1.01, r
        assert np.sqrt(w[r] @ w[r] + b[r] ** 2) <= decay**-0.5 * (1 + 1e-6)


# -- full-batch gradient descent: any allocation of samples to workers takes the same steps

PARTITIONS: dict[str, Partitioner] = {"shuffled": Shuffled(), "by_label": ByLabel(2), "dirichlet": Dirichlet(0.3)}
LR, STEPS = 0.1, 12
SAMPLES = 101  # a prime number: no two workers or more can have equal shares


def data64() -> tuple[Tensor, Tensor]:
    train, _ = Digits(limit=SAMPLES).load()
    return lone(train.samples).flatten(1).double(), train.targets


def central(steps: int) -> list[tuple[Tensor, Tensor]]:
    """(W, b) after each step of gradient descent on the mean cross-entropy of all samples, by its formula."""
    x, y = data64()
    w, b, found = torch.zeros(10, 64, dtype=torch.float64), torch.zeros(10, dtype=torch.float64), []
    for _ in range(steps):
        residual = (x @ w.T + b).softmax(dim=1) - F.one_hot(y, 10)  # dl/df of each sample
        w, b = w - LR * residual.T @ x / len(x), b - LR * residual.mean(dim=0)
        found.append((w, b))
    return found


def descend(comm: Comm, sync: BSP | NaiveBSP, partitioner: Partitioner, weighs: bool) -> dict[str, Any]:
    """One worker's part of it: weights after each step. `weighs`: else each worker's mean counts alike."""
    x, y = data64()
    dealt = partitioner.deal(y, comm.size, SAMPLES, seed=0)
    model = nn.Linear(64, 10).double()
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=LR), comm)
    found = []
    for step in range(STEPS):
        mine = dealt.indices(step, comm.rank)
        total = dealt.total(step) if weighs else comm.size * len(mine)
        sync.begin(Batch(x[mine], y[mine], total, step))
        F.cross_entropy(model(x[mine]), y[mine]).backward()
        sync.update()
        found.append(torch.cat([model.weight.detach(), model.bias.detach()[:, None]], dim=1).clone())
    return {"weights": torch.stack(found), "samples": len(mine), "steps": dealt.steps_per_epoch}


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("sync", [BSP, NaiveBSP])
def test_in_float64_every_step_is_that_of_one_worker_for_any_allocation(
    name: str, workers: int, sync: type[BSP] | type[NaiveBSP]
) -> None:
    results = run_virtual(workers, descend, sync(), PARTITIONS[name], True)
    assert sum(each["samples"] for each in results) == SAMPLES and results[0]["steps"] == 1
    assert workers == 1 or len({each["samples"] for each in results}) > 1, "shares are even, and weights do nothing"
    for step, (w, b) in enumerate(central(STEPS)):
        for each in results:
            torch.testing.assert_close(each["weights"][step], torch.cat([w, b[:, None]], dim=1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["by_label", "dirichlet"])
def test_a_mean_of_the_workers_means_would_be_another_descent(name: str) -> None:
    """That the test above could fail."""
    results = run_virtual(3, descend, BSP(), PARTITIONS[name], False)
    w, b = central(STEPS)[-1]
    assert (results[0]["weights"][-1] - torch.cat([w, b[:, None]], dim=1)).abs().max() > 1e-4


LOGISTIC = ["model=logistic_regression", "data=digits", f"data.limit={SAMPLES}", "optimizer.momentum=0", "epochs=8"]


def told(path: Path) -> list[float]:
    """The test loss of each evaluation."""
    return [record["loss"] for record in RunDirectory(path).records() if record["kind"] == "evaluation"]


@pytest.mark.parametrize(
    ("name", "workers"),
    [("shuffled", 2), ("shuffled", 3), ("shuffled", 4), ("by_label", 3), ("dirichlet", 3), ("dirichlet", 4)],
)
def test_a_full_batch_run_takes_the_steps_of_one_worker_whatever_the_partition(
    root: Path, name: str, workers: int
) -> None:
    full = [*LOGISTIC, f"batch_size={SAMPLES}"]
    w, b, path = trained(root, *full, "hardware.workers=1")
    others = trained(root, *full, f"partition={name}", f"hardware.workers={workers}")
    np.testing.assert_allclose(others[0], w, atol=1e-6)
    np.testing.assert_allclose(others[1], b, atol=1e-6)
    losses = told(path)
    assert len(losses) == 8 and losses[-1] < losses[0]
    np.testing.assert_allclose(told(others[2]), losses, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("name", PARTITIONS)
def test_on_processes_a_full_batch_run_takes_the_steps_of_one_worker_too(
    fork_server: None, root: Path, name: str
) -> None:
    full = [*LOGISTIC, f"batch_size={SAMPLES}"]
    w, b, path = trained(root, *full, "hardware.workers=1")
    others = trained(root, *full, f"partition={name}", "hardware.workers=2", on="hardware=local")
    np.testing.assert_allclose(others[0], w, atol=1e-6)
    np.testing.assert_allclose(others[1], b, atol=1e-6)
    np.testing.assert_allclose(told(others[2]), told(path), rtol=1e-5)


def test_mini_batches_of_the_same_samples_do_depend_on_the_allocation(root: Path) -> None:
    mini = [*LOGISTIC, "batch_size=8", "hardware.workers=2", "optimizer.lr=0.1"]
    even, skewed = trained(root, *mini), trained(root, *mini, "partition=by_label")
    assert np.abs(even[0] - skewed[0]).max() > 1e-2, "10,000 times what full batches may differ by"


# -- from one line, on processes

LINES = ["linear_regression", "ridge", "logistic_regression", "svm", "pegasos"]


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("on", ["local", "virtual"])
def test_each_convex_experiment_runs_from_one_line(fork_server: None, root: Path, name: str, on: str) -> None:
    short = ["epochs=3", "evaluate.every=3", "tracking=none"]
    result = engine.run([f"experiment={name}", f"hardware={on}", "hardware.workers=2", *short], root=root, quiet=True)
    assert result is not None and result.summary["status"] == "completed"
    [evaluation] = [record for record in RunDirectory(result.path).records() if record["kind"] == "evaluation"]
    assert np.isfinite(evaluation["loss"])
