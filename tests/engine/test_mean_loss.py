"""A loss of the user's that is no mean over samples is told once, and a mean is not."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline import engine
from paceline.tasks.losses import CrossEntropy
from paceline.tracking.run_directory import RunDirectory

HERE = __name__


class OwnMean(CrossEntropy):
    """A loss of the user's, made as `kind` says."""

    def __init__(self, kind: str = "mean") -> None:
        super().__init__()
        self.kind = kind

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        match self.kind:
            case "sum":
                return F.cross_entropy(outputs, targets, reduction="sum")
            case "classes":
                return F.cross_entropy(outputs, targets, torch.linspace(1, 9, outputs.shape[1]))
            case "half":
                return F.cross_entropy(outputs.bfloat16(), targets)
            case "random":
                return F.cross_entropy(outputs + torch.randn(outputs.shape), targets)
            case _:
                pass
        return F.cross_entropy(outputs, targets)


class Scored(nn.Module):
    """[n, 1, 8, 8] -> scores of ten digits, and its own loss: the mean, or the sum."""

    def __init__(self, sums: bool = False) -> None:
        super().__init__()
        self.sums = sums
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 10)
        )

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.layers(x)
        how = "sum" if self.sums else "mean"
        return {"logits": logits, "loss": None if labels is None else F.cross_entropy(logits, labels, reduction=how)}


def notes(folder: Path, *told: str, workers: int = 2) -> list[str]:
    lengths = ("hardware=virtual", "steps=1", "data.limit=64", "batch_size=16", "tracking=none")
    overrides = [*told, *lengths, f"hardware.workers={workers}"]
    result = engine.run(overrides, root=folder, quiet=True, allow_modules=[HERE])
    records = RunDirectory(result.path).records()
    return [each["text"] for each in records if each["kind"] == "note"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [("mean", ""), ("half", ""), ("random", ""), ("sum", "is a sum"), ("classes", "is no mean over samples")],
)
def test_a_loss_of_the_users_that_is_no_mean_is_told(kind: str, said: str, tmp_path: Path) -> None:
    found = notes(tmp_path, f"task={{_target_:{HERE}.OwnMean,kind:{kind}}}")
    assert (len(found) == 1 and said in found[0]) if said else found == []


@pytest.mark.parametrize("sums", [False, True])
def test_the_loss_of_a_model_is_looked_at_too(sums: bool, tmp_path: Path) -> None:
    found = notes(tmp_path, "task=model", f"model={{_target_:{HERE}.Scored,sums:{sums}}}")
    assert len(found) == sums and all("is a sum" in text for text in found)


def test_one_worker_alone_trains_by_any_loss(tmp_path: Path) -> None:
    assert notes(tmp_path, f"task={{_target_:{HERE}.OwnMean,kind:sum}}", workers=1) == []


def test_a_loss_that_needs_values_is_not_laid_to_its_model() -> None:
    """The same model under another task is planned without values in one process, as a sweep's trials are."""
    few = ("tracking=none", "data.limit=64", "batch_size=16", "hardware.workers=2")
    engine.plan([*few, f"task={{_target_:{HERE}.OwnMean,kind:classes}}"], allow_modules=[HERE])
    engine.plan([*few, "strategy=pipeline"])
