"""The loss that is trained and the figures that are reported."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Split


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy (nats) and the share of right predictions, over `samples` samples."""

    loss: float
    accuracy: float
    samples: int


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss, in nats. outputs [..., classes], targets [...] int64: a prediction a sample, or a token."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """The number of right predictions, int64 []. outputs [..., classes], targets [...] int64."""
    return (outputs.argmax(dim=-1) == targets).sum()


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, batch_size: int = 512, device: torch.device | str = "cpu") -> Evaluation:
    """Evaluate `model`, which lies on `device`, in evaluation mode; its training mode is put back."""
    loss, right = 0.0, 0
    training = model.training
    model.eval()
    try:
        for inputs, targets in zip(split.inputs.split(batch_size), split.targets.split(batch_size), strict=True):
            outputs, targets = model(inputs.to(device)), targets.to(device)
            # A batch mean counts by its samples: the last batch may be smaller.
            loss += cross_entropy(outputs, targets).item() * len(inputs)
            right += int(correct(outputs, targets))
    finally:
        model.train(training)
    return Evaluation(loss / len(split), right / split.targets.numel(), len(split))
