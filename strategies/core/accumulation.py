"""Gradient accumulation: a replica's batch in k micro-batches, one after another, with one exchange and one update.

Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB; arXiv 2006.15704),
section 3.2.4. The n samples of a step are cut into micro-batches of n_1, ..., n_k, as even as can be; each has its
forward and its backward pass before the next one begins, so that the activations of one are held at once:

    g = sum_i (n_i / n) g_i,        g_i the gradient of the mean loss of micro-batch i

which is the gradient of the batch's mean loss. The weight n_i / n is in the loss, so that backward adds gradients up.
Only the last backward pass is told to be the last: while it goes on, gradients are sent, once a step.

Any strategy does it that has its gradients from the loss that it was given and adds them up: one that steps by itself
finds in `Batch.last` whether to send gradients, and in `Batch.share` the weight of the whole batch. What sends weights
from replica to replica in its passes (`Strategy.passes_together`) makes k of them on each, with or without samples.

Not the same as one large batch: batch norm is over micro-batches, and dropout draws for each of them.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from .batch import Batch, BeforeBackward
from .loss import Loss
from .strategy import Strategy


class Accumulation:
    """The division of one worker's steps into micro-batches."""

    def __init__(self, micro_batches: int = 1) -> None:
        """`micro_batches`: k; with 1 nothing is changed."""
        self.micro_batches = micro_batches
        self.weight = 1.0  # n_i / n, of the micro-batch at work
        self._last = True

    def sizes(self, samples: int) -> list[int]:
        """n_i: the larger ones first; 0 of those at the end where there are fewer samples than micro-batches."""
        each, more = divmod(samples, self.micro_batches)
        return [each + (i < more) for i in range(self.micro_batches)]

    def weighing(self, loss: Loss) -> Loss:
        """Returns the loss to give to a strategy: `loss`, times the weight of the micro-batch."""
        return loss if self.micro_batches == 1 else _Weighed(loss, self)

    def telling(self, before_backward: BeforeBackward) -> BeforeBackward:
        """Returns the function that a strategy calls before a backward pass."""
        if self.micro_batches == 1:
            return before_backward
        return lambda roots, last: before_backward(roots, last and self._last)

    def forward_backward(self, strategy: Strategy, batch: Batch) -> Tensor | None:
        """Runs `Strategy.forward_backward` for each micro-batch. The strategy was given the results of `weighing` and
        `telling`.
        """
        if self.micro_batches == 1:
            return strategy.forward_backward(batch)
        mean: Tensor | None = None
        for micro in self._cut(batch, strategy.traits.passes_together):
            self.weight, self._last = micro.size / batch.size if batch.size else 1.0, micro.last
            loss = strategy.forward_backward(micro)  # (n_i / n) l_i
            if loss is not None:
                mean = loss if mean is None else mean + loss
        return mean

    def _cut(self, batch: Batch, all_of_them: bool) -> Iterator[Batch]:
        """The micro-batches: those without samples where somebody waits for them, and one where no other is left."""
        sizes = self.sizes(batch.size)
        count = len(sizes) if all_of_them else max(sum(size > 0 for size in sizes), 1)
        pieces = zip(*(each.split(sizes) for each in (batch.inputs, batch.targets)), strict=True)
        for i, (inputs, targets) in zip(range(count), pieces, strict=False):
            yield replace(batch, inputs=inputs, targets=targets, of=batch.size, last=i + 1 == count)


class _Weighed:
    """A loss, times the weight of the micro-batch; it says of itself what the loss says."""

    def __init__(self, loss: Loss, accumulation: Accumulation) -> None:
        functools.update_wrapper(self, loss)
        self.plain, self._accumulation = loss, accumulation

    def __call__(self, outputs: Tensor, targets: Any) -> Tensor:
        return self.weigh(self.plain(outputs, targets))

    def weigh(self, mean: Tensor) -> Tensor:
        weight = self._accumulation.weight
        return mean if weight == 1 else mean * weight


def unweighed(loss: Loss) -> Loss:
    """Returns `loss` without the weight of the micro-batch."""
    return loss.plain if isinstance(loss, _Weighed) else loss


def weigher(loss: Loss) -> Callable[[Tensor], Tensor]:
    """Returns the function by which `loss` weighs a mean, for callers that compute the mean in another way."""
    return getattr(loss, "weigh", None) or (lambda mean: mean)
