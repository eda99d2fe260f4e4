"""The figures that are reported of a model."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .base import Split
from .losses.base import Task


@dataclass(frozen=True)
class Evaluation:
    """The task's mean loss and the value of its metric, over `samples` samples."""

    loss: float
    score: float
    samples: int


@torch.no_grad()
def evaluate(
    task: Task, model: nn.Module, split: Split, batch_size: int = 512, device: torch.device | str = "cpu"
) -> Evaluation:
    """Evaluate `model`, which lies on `device`, in evaluation mode; its training mode is put back."""
    loss, tallies = 0.0, list[Tensor]()
    training = model.training
    model.eval()
    try:
        for inputs, targets in zip(split.inputs.split(batch_size), split.targets.split(batch_size), strict=True):
            outputs, targets = model(inputs.to(device)), targets.to(device)
            # A batch mean counts by its samples: the last batch may be smaller.
            loss += task.loss(outputs, targets).item() * len(inputs)
            tallies.append(task.metric.tally(outputs, targets).cpu())
    finally:
        model.train(training)
    score = task.metric.score(torch.stack(tallies).sum(dim=0), split.targets)
    return Evaluation(loss / len(split), score, len(split))
