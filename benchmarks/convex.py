"""Convex models beside scikit-learn's minima of the same objectives: python -m benchmarks.convex (docs/convex.md).

Ours are trained on two workers of the virtual cluster. Nothing is timed. Objectives are computed in float64 of both.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors.torch import load_file
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from paceline import engine
from paceline.batches import lone
from paceline.tasks.base import Split
from paceline.tasks.data.diabetes import Diabetes
from paceline.tasks.data.digits import Digits

Objective = Callable[[np.ndarray, np.ndarray], float]  # (outputs [n, k], targets [n]) -> the mean loss


def squares(f: np.ndarray, y: np.ndarray) -> float:
    return float(np.square(f[:, 0] - y).mean())


def cross_entropy(f: np.ndarray, y: np.ndarray) -> float:
    above = f - f.max(axis=1, keepdims=True)
    return float((np.log(np.exp(above).sum(axis=1)) - above[np.arange(len(y)), y]).mean())


def missed(f: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[n, classes]: max(0, 1 - s f), of each class against all others."""
    return np.maximum(0, 1 - np.where(np.arange(f.shape[1]) == y[:, None], 1, -1) * f)


def hinge(f: np.ndarray, y: np.ndarray) -> float:
    return float(missed(f, y).sum(axis=1).mean())


def squared_hinge(f: np.ndarray, y: np.ndarray) -> float:
    return float(np.square(missed(f, y)).sum(axis=1).mean())


@dataclass(frozen=True)
class ConvexRow:
    what: str
    overrides: str
    theirs: object  # of scikit-learn, not fitted yet
    loss: Objective
    decay: float  # of 1/2 |W|^2
    free: bool  # whether the intercept is not regularised


N = {"diabetes": 353, "digits": 1437}


def rows() -> list[ConvexRow]:
    n, m = N["diabetes"], N["digits"]
    exact = {"tol": 1e-8, "random_state": 0}
    return [
        ConvexRow("least squares", "experiment=linear_regression", LinearRegression(), squares, 0.0, True),
        ConvexRow("ridge", "experiment=ridge", Ridge(alpha=n * 0.1 / 2), squares, 0.1, True),
        ConvexRow(
            "logistic regression",
            "experiment=logistic_regression",
            LogisticRegression(C=1 / (m * 0.1), tol=1e-10, max_iter=10_000),
            cross_entropy,
            0.1,
            True,
        ),
        ConvexRow(
            "SVM, squared hinge",
            "experiment=svm",
            cast(Any, LinearSVC)(C=1 / (m * 0.1), dual=False, max_iter=100_000, **exact),
            squared_hinge,
            0.1,
            False,
        ),
        ConvexRow(
            "SVM, hinge (Pegasos)",
            "experiment=pegasos",
            LinearSVC(C=1 / (m * 0.1), loss="hinge", max_iter=1_000_000, **exact),
            hinge,
            0.1,
            False,
        ),
    ]


def main() -> None:
    splits = {"diabetes": Diabetes().load(), "digits": Digits().load()}
    print("| model | ours | scikit-learn | gap | largest difference of a weight | test score, ours | scikit-learn |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in rows():
        data = "diabetes" if row.loss is squares else "digits"
        print(compared(row, *splits[data]), flush=True)


def compared(row: ConvexRow, train: Split, test: Split) -> str:
    x, y = lone(train.samples).flatten(1).double().numpy(), train.targets.numpy()
    theirs = row.theirs.fit(x, y)  # pyright: ignore[reportAttributeAccessIssue]
    w, b = np.atleast_2d(theirs.coef_), np.atleast_1d(theirs.intercept_)
    with tempfile.TemporaryDirectory() as root:
        quiet = ["tracking=none", "hardware=virtual", "hardware.workers=2"]
        result = engine.run([*row.overrides.split(), *quiet], root=Path(root), quiet=True)
        assert result is not None
        state = load_file(result.path / "model.safetensors")
    v, c = state["output.weight"].double().numpy(), state["output.bias"].double().numpy()

    def objective(w: np.ndarray, b: np.ndarray) -> float:
        squared = np.square(w).sum() + (0 if row.free else np.square(b).sum())
        return row.loss(x @ w.T + b, y) + row.decay / 2 * float(squared)

    ours, best = objective(v, c), objective(w, b)
    score = theirs.score(lone(test.samples).flatten(1).double().numpy(), test.targets.numpy())
    metric = result.summary.get("r2") or result.summary["accuracy"]
    gap, far = (ours - best) / best, np.abs(v - w).max()
    return f"| {row.what} | {ours:.6f} | {best:.6f} | {gap:.1e} | {far:.1e} | {metric:.4f} | {score:.4f} |"


if __name__ == "__main__":
    main()
