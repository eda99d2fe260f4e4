"""The figures that are reported of a model."""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ..conf.errors import ConfigError
from .base import Readable
from .errors import SampleError
from .losses.base import Task
from .losses.metrics import Metric


@dataclass(frozen=True)
class Evaluation:
    """The task's mean loss and the value of its metric, over `samples` samples.

    The score is NaN where the loss is not finite or an output is NaN: an argmax over NaN is no answer. `unknown`: the
    first sample with such an output, or else the first with an infinite one in a batch whose loss is not finite.
    """

    loss: float
    score: float
    samples: int
    unknown: int | None = None


@torch.no_grad()
def evaluate(
    task: Task, model: nn.Module, split: Readable, batch_size: int = 512, device: torch.device | str = "cpu"
) -> Evaluation:
    """Evaluate `model`, which lies on `device`, in evaluation mode; its training mode is put back.

    Loss and metric may be the user's, and may change what they are given: each has copies of targets and weights, and
    the loss comes last. Raises ConfigError where the outputs are no tensor, and SampleError
    where no sample counts.
    """
    loss, counts, tallies = 0.0, 0.0, list[Tensor]()
    seen: list[Tensor] = []
    weighted: list[Tensor] = []
    unknown: int | None = None
    infinite: int | None = None
    training = model.training
    model.eval()
    try:
        for first in range(0, len(split), batch_size):
            taken = split.take(slice(first, first + batch_size))
            outputs, own = task.evaluated(model, taken.inputs.to(device), taken.targets)
            targets = taken.targets.to(device)
            if not isinstance(outputs, Tensor):
                raise ConfigError(
                    f"model: {type(model).__name__} returns a {type(outputs).__name__} in evaluation mode; must return "
                    "a tensor, as in training"
                )
            seen.append(taken.targets.clone())
            unknown = _first(outputs.isnan(), first, len(targets)) if unknown is None else unknown
            more = {} if taken.weights is None else {"weights": taken.weights.to(device, copy=True)}
            judged = outputs if _is_ours(task.metric) else outputs.clone()
            tallies.append(_tally(task.metric, task.metric.tally(judged, targets.clone(), **more), tallies))
            # A batch mean counts by its samples: the last batch may be smaller.
            before = loss
            if taken.weights is None:
                loss += (task.loss(outputs, targets) if own is None else own).item() * len(targets)
                counts += len(targets)
            else:
                weighted.append(taken.weights)
                weights = taken.weights.to(device).double()
                count = weights.sum().item()
                if own is None:
                    loss += (task.each(outputs, targets).double() * weights).sum().item()
                elif count > 0:
                    loss += own.item() * count
                counts += count
            if math.isfinite(before) and not math.isfinite(loss):
                infinite = _first(outputs.isinf(), first, len(targets))
    finally:
        model.train(training)
    if counts == 0:
        raise SampleError(f"an evaluation of {len(split):,} samples has weights that are all 0, so that nothing counts")
    known = {"weights": torch.cat(weighted)} if weighted else {}
    score = _score(task.metric, task.metric.score(torch.stack(tallies).sum(dim=0), torch.cat(seen), **known))
    loss /= counts
    if unknown is not None or not math.isfinite(loss):
        score = math.nan
    return Evaluation(loss, score, len(split), infinite if unknown is None else unknown)


def _tally(metric: Metric, made: object, before: list[Tensor]) -> Tensor:
    """Returns what a metric made of a batch. Raises ConfigError where it cannot be added to those `before`."""
    if isinstance(made, Tensor) and all(made.shape == each.shape for each in before):
        return made.cpu()
    found = f"a tensor {list(made.shape)}, and {list(before[-1].shape)} before" if isinstance(made, Tensor) else ""
    raise ConfigError(
        f"task: tally of {type(metric).__module__}.{type(metric).__qualname__} returns {found or _kind(made)}; must "
        "return a tensor of the same shape for each batch, the sum over its samples"
    )


def _score(metric: Metric, made: object) -> float:
    """Returns a metric's value as a number. Raises ConfigError where it is none."""
    with suppress(TypeError, ValueError, RuntimeError):
        if not isinstance(made, str):
            return float(cast("float", made))
    found = f"a tensor {list(made.shape)}" if isinstance(made, Tensor) else _kind(made)
    raise ConfigError(
        f"task: score of {type(metric).__module__}.{type(metric).__qualname__} returns {found}; must return one number"
    )


def _kind(made: object) -> str:
    return f"an object of {type(made).__name__}"


def _is_ours(metric: Metric) -> bool:
    """Ours change nothing; outputs are too large to be copied for nothing."""
    return type(metric).__module__ == Metric.__module__


def _first(wrong: Tensor, first: int, samples: int) -> int | None:
    """The first sample, counted from `first`, with an output that is `wrong`. Outputs [samples, ...]."""
    if not bool(wrong.any()):
        return None
    rows = wrong.reshape(samples, -1).any(dim=1) if len(wrong) == samples else wrong.any().expand(1)
    return first + int(rows.int().argmax())
