"""Tells a person whose loss is no mean over samples. Replicas' losses are averaged, so that it trains otherwise on
several workers than on one: a sum with a Kth of the gradient.

Looked at once, on a few samples in evaluation mode: the loss of all is the mean of the losses of two parts of them,
weighted by their samples. Losses of ours are means, and are not looked at.
"""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...batches import call, of_each
from ...tasks.base import Readable
from ...tasks.losses.base import Task
from ...tasks.losses.own import OwnLoss
from ...tasks.outputs import loss_and_logits
from ..features.feature import Parts
from .laid_out import laid_out

SAMPLES, LATER = 8, 5  # of them in the second part; halves may have the same labels
NEAR = 1e-3  # of the loss; more in half precision


def said_of_loss(parts: Parts, judged: nn.Module, train: Readable, device: torch.device) -> str | None:
    """Returns what to tell of the task's loss; None: it is a mean, or nobody can say (it draws random numbers)."""
    ours = type(parts.task).__module__.startswith(f"{__name__.partition('.')[0]}.tasks.")
    if (ours and not isinstance(parts.task, OwnLoss)) or len(train) < SAMPLES:
        return None
    training = judged.training
    with torch.no_grad(), torch.random.fork_rng(), laid_out(judged.eval(), device):
        try:
            found = _looked_at(copy.deepcopy(parts.task), judged, train, device)
        except Exception:  # it may take no batch of so few samples
            found = None
    judged.train(training)
    return found


def _looked_at(task: Task, model: nn.Module, train: Readable, device: torch.device) -> str | None:
    taken = train.take(slice(SAMPLES))

    def own(part: slice) -> Tensor:
        return loss_and_logits(model, of_each(taken.inputs, lambda each: each[part].to(device, copy=True)))[0]

    def of(outputs: Tensor, part: slice) -> Tensor:
        return task.loss(outputs[part].clone(), taken.targets[part].to(device, copy=True))

    if isinstance(task, OwnLoss):
        return _compared(own, model, taken.weights)
    outputs = call(model, taken.inputs.to(device))
    drawn = torch.randn(outputs.shape, device=device).to(outputs.dtype)  # a new model's losses are all about alike
    found = (_compared(lambda part, its=its: of(its, part), model, None) for its in (outputs, drawn))
    return next(filter(None, found), None)


def _compared(loss: Callable[[slice], Tensor], model: nn.Module, weights: Tensor | None) -> str | None:
    """`weights`: of the targets that the loss is a mean over; None: all count alike."""
    sizes = SAMPLES - LATER, LATER
    splits = slice(SAMPLES), slice(SAMPLES), slice(sizes[0]), slice(sizes[0], SAMPLES)
    made, again, *parts = [loss(each) for each in splits]
    counts = sizes if weights is None else [float(each.sum()) for each in weights.split(sizes)]
    whole, first, second = (float(each) for each in (made, *parts))
    mean = (counts[0] * first + counts[1] * second) / sum(counts)
    near = max(NEAR, *(2 * torch.finfo(each.dtype).eps for each in (made, *model.parameters())))
    if float(again) != whole or not math.isfinite(whole + mean):
        return None
    if math.isclose(whole, mean, rel_tol=near, abs_tol=near):
        return None
    kind = "a sum" if math.isclose(whole, first + second, rel_tol=near) else "no mean over samples"
    return (
        f"task: the loss is {kind}: {whole:.4g} for {SAMPLES} samples, of which {sizes[0]} and {sizes[1]} have a mean "
        f"of {mean:.4g}. Several workers train otherwise with it than one does. Divide it by the number of samples "
        "that count"
    )
