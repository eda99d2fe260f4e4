"""The figures that are reported of a model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import call
from .base import Readable
from .errors import SampleError
from .losses.base import Task


@dataclass(frozen=True)
class Evaluation:
    """The task's mean loss and the value of its metric, over `samples` samples."""

    loss: float
    score: float
    samples: int


@torch.no_grad()
def evaluate(
    task: Task, model: nn.Module, split: Readable, batch_size: int = 512, device: torch.device | str = "cpu"
) -> Evaluation:
    """Evaluates `model`, which lies on `device`, in evaluation mode; its training mode is put back.

    Raises SampleError where no sample counts.
    """
    loss, counts, tallies = 0.0, 0.0, list[Tensor]()
    seen: list[Tensor] = []
    weighted: list[Tensor] = []
    training = model.training
    model.eval()
    try:
        for first in range(0, len(split), batch_size):
            taken = split.take(slice(first, first + batch_size))
            outputs, targets = call(model, taken.inputs.to(device)), taken.targets.to(device)
            more: dict[str, Any] = {}
            # A batch mean counts by its samples: the last batch may be smaller.
            if taken.weights is None:
                loss += task.loss(outputs, targets).item() * len(targets)
                counts += len(targets)
            else:
                weighted.append(taken.weights)
                more = {"weights": (weights := taken.weights.to(device))}
                losses = task.each(outputs, targets)
                loss += (losses.double() * weights).sum().item()
                counts += weights.double().sum().item()
            tallies.append(task.metric.tally(outputs, targets, **more).cpu())
            seen.append(taken.targets)
    finally:
        model.train(training)
    if counts == 0:
        raise SampleError(f"an evaluation of {len(split):,} samples has weights that are all 0, so that nothing counts")
    known = {"weights": torch.cat(weighted)} if weighted else {}
    score = task.metric.score(torch.stack(tallies).sum(dim=0), torch.cat(seen), **known)
    return Evaluation(loss / counts, score, len(split))
