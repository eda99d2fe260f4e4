"""Weights of classes and labels that do not count: the loss of torch, on any number of workers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.tasks.base import Split
from paceline.tasks.losses.weighted_labels import WeightedLabels

CLASSES, SAMPLES, IGNORED = 3, 48, -100
WEIGHT = [0.5, 2.0, 1.0]


def labelled(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Half of the samples are of class 0, and a sixth of the labels does not count."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 5, generator=generator)
    labels = torch.tensor([0, 0, 0, 1, 2, IGNORED]).repeat(SAMPLES // 6)
    np.savez(folder / "data.npz", inputs=inputs.numpy(), targets=labels.numpy())
    return inputs, labels


def plainly(inputs: torch.Tensor, labels: torch.Tensor, weight: list[float], steps: int) -> torch.Tensor:
    """Returns the weights of a linear model after full batches of plain SGD, from zeros."""
    model = nn.Linear(5, CLASSES, bias=False)
    nn.init.zeros_(model.weight)
    for _ in range(steps):
        model.zero_grad()
        F.cross_entropy(model(inputs), labels, torch.tensor(weight), ignore_index=IGNORED).backward()
        with torch.no_grad():
            model.weight -= 0.5 * model.weight.grad  # pyright: ignore[reportOperatorIssue]
    return model.weight.detach()


class Zeros(nn.Linear):
    """[n, 5] -> [n, 3]"""

    def __init__(self) -> None:
        super().__init__(5, CLASSES, bias=False)
        nn.init.zeros_(self.weight)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("weight", [WEIGHT, "balanced"], ids=str)
def test_replicas_train_by_the_mean_of_torch(workers: int, weight: Any, tmp_path: Path) -> None:
    inputs, labels = labelled(tmp_path)
    counts = torch.bincount(labels[labels != IGNORED])
    expected = plainly(inputs, labels, WEIGHT if weight == WEIGHT else (40 / (3 * counts)).tolist(), steps=4)
    result = engine.run(
        [
            "data=arrays",
            f"data.path={tmp_path / 'data.npz'}",
            f"data.test_path={tmp_path / 'data.npz'}",
            "task=weighted_labels",
            "task.ignore_index=-100",
            f"task.weight={weight}".replace(" ", ""),
            f"batch_size={SAMPLES // workers}",
            "steps=4",
            "optimizer.lr=0.5",
            "optimizer.momentum=0",
            "hardware=virtual",
            f"hardware.workers={workers}",
            "tracking=none",
        ],
        model=Zeros,
        root=tmp_path / "runs",
    )
    assert torch.allclose(load_file(result.path / "model.safetensors")["weight"], expected, atol=1e-6)


class Exact(Zeros):
    """Computes in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.double()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.double())


@pytest.mark.parametrize("weight", [[0.1, 2.0, 0.7], "balanced", None], ids=str)
def test_a_model_in_float64_has_the_mean_of_torch(weight: Any, tmp_path: Path) -> None:
    inputs, labels = labelled(tmp_path)
    counts = torch.bincount(labels[labels != IGNORED]).double()
    by_class = {"balanced": (40 / (3 * counts)).tolist(), "None": [1.0] * CLASSES}.get(str(weight), weight)
    model = Exact()
    loss = F.cross_entropy(model(inputs), labels, torch.tensor(by_class, dtype=torch.float64), ignore_index=IGNORED)
    loss.backward()
    assert model.weight.grad is not None
    result = engine.run(
        [
            "data=arrays",
            f"data.path={tmp_path / 'data.npz'}",
            f"data.test_path={tmp_path / 'data.npz'}",
            f"model={{_target_:{Exact.__module__}.Exact}}",
            "task=weighted_labels",
            f"task.weight={'null' if weight is None else weight}",
            f"task.ignore_index={IGNORED}",
            "steps=1",
            f"batch_size={SAMPLES}",
            "optimizer.lr=1",
            "hardware=virtual",
            "hardware.workers=1",
            "tracking=none",
        ],
        root=tmp_path,
        allow_modules=[Exact.__module__],
    )
    trained = load_file(result.weights)["weight"]
    torch.testing.assert_close(trained, -model.weight.grad, rtol=1e-12, atol=1e-15)


def test_weights_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.weight=\[1, 2\]: has 2 weights, and the data have 10 classes"):
        engine.plan(["task=weighted_labels", "task.weight=[1,2]"])
    with pytest.raises(ConfigError, match="counts the targets of all samples"):
        WeightedLabels(weight="balanced").weigher(SimpleNamespace(targets=None), 3)  # pyright: ignore


def test_a_class_without_samples_has_no_weight() -> None:
    weigh = WeightedLabels(weight="balanced").weigher(Split(torch.zeros(3, 1), torch.tensor([0, 0, 2])), 3)
    assert weigh is not None and weigh(torch.tensor([0, 1, 2])).tolist() == [0.5, 0.0, 1.0]
