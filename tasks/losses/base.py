"""A task: the loss that is trained, the metric that an evaluation reports beside it, and what targets they take.

A model puts out [n, *outputs] for n samples. Of labels [n, *target_shape] int64 there are scores for each class,
outputs = (*target_shape, classes); of numbers [n, *target_shape] there is one row of them, outputs = (k,),
k = prod(target_shape).
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from ...batches import Samples, call
from ...conf.errors import ConfigError
from ..base import DataSpec, Readable
from .metrics import Metric

F = TypeVar("F", bound=Callable[..., Tensor])
Weigher = Callable[[Tensor], Tensor]  # targets [n, *target_shape] -> weights, floating [n, *target_shape]


def mean_cross_entropy(loss: F) -> F:
    """Says of a `Task.loss` that it is the mean over all predictions of the cross-entropy of softmax [..., classes]:
    a strategy may then compute it of logits in pieces (strategy=tensor).
    """
    loss.is_mean_cross_entropy = True  # type: ignore[attr-defined]
    return loss


class Task(ABC):
    """`targets`: labels (class numbers) or numbers (a regression's); none where the task does not look at them, and is
    one for models that learn of samples alone (models/unsupervised.py). `metric`: larger is better, 1 is perfect.

    `target_accuracy` is a value of the metric, and the time to accuracy is the time until the metric reaches it.
    """

    targets: Literal["labels", "numbers", "none"]
    metric: Metric
    argument: str = ""  # of a model's forward, which is given the targets: the loss is the model's own
    ignored: int | None = None  # the label of targets that do not count

    def weigher(self, train: Readable | None = None, classes: int = 0) -> Weigher | None:
        """Returns a function from targets to their weights; None: all count alike, in training and in evaluation.

        `train`, `classes`: the training samples and the number of their classes, for weights of the training loss;
        without them the function gives the weights of an evaluation. Raises ConfigError.
        """
        return None if self.ignored is None else lambda targets: (targets != self.ignored).float()

    def without_ignored(self, targets: Tensor) -> Tensor:
        """Returns targets with 0 in place of the labels that do not count."""
        return targets if self.ignored is None else targets.masked_fill(targets == self.ignored, 0)

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[n, *outputs] and [n, *target_shape] -> [], the mean over samples. It works on the meta device, too."""

    def evaluated(self, model: nn.Module, inputs: Samples, targets: Tensor) -> tuple[Any, Tensor | None]:
        """Returns the outputs of `model` for the metric, and the model's own mean loss; None: `loss` is the loss."""
        return call(model, inputs), None

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each target, of the shape of targets, whose mean is `loss`: weighted data are learnt by these."""
        raise NotImplementedError

    @property
    def weighs(self) -> bool:
        """Returns whether it can learn weighted data."""
        return type(self).each is not Task.each

    def function(self, spec: DataSpec) -> Callable[[Tensor, Any], Tensor]:
        """Returns the loss function for a strategy. With weighted data w, whose mean over the samples of a step is 1,
        it is

            1 / n sum_i w_i l_i

        over the n targets of whatever is given: as any mean over samples, it may be taken of pieces of a batch.
        """
        return functools.partial(_weighted, self) if spec.weights else self.loss

    def check_data(self, task: str, data: str, spec: DataSpec) -> None:
        """Refuse data with other targets than the task learns. Both are called by their names.

        Raises ConfigError.
        """
        if spec.weights and not self.weighs:
            raise ConfigError(
                f"task={task}: has no loss of each target ({type(self).__qualname__}.each), and the samples of "
                f"data={data} have weights; a task with one learns them, such as task=cross_entropy or squared"
            )
        if self.targets not in ("none", spec.targets):
            numbers, labels = "task=squared, huber or binary", "task=cross_entropy, hinge or squared_hinge"
            names = numbers if spec.targets == "numbers" else labels
            raise ConfigError(
                f"task={task}: learns {self.targets}, and the targets of data={data} are {spec.targets} "
                f"({spec.target_dtype}). Choose data.kind={self.targets}, which data=table, arrays and hugging_face "
                f"have, or {names}."
            )

    def check_targets(self, what: str, targets: Tensor) -> None:
        """Refuse targets that were loaded and cannot be learnt, for instance labels out of their range; there is one at
        least. `what` begins the sentence. Raises ConfigError.
        """

    def outputs(self, spec: DataSpec) -> tuple[int, ...]:
        """Returns the shape of a model's output for one sample."""
        return (*spec.target_shape, spec.classes) if self.targets == "labels" else (prod(spec.target_shape),)

    def accepts(self, outputs: Tensor, spec: DataSpec) -> bool:
        """Returns whether a model's outputs fit. It may have scores for more classes than the data have."""
        wanted = self.outputs(spec)
        width = outputs.shape[-1] if outputs.dim() else 0
        enough = width >= wanted[-1] if self.targets == "labels" else width == wanted[-1]
        return outputs.dim() == 1 + len(wanted) and outputs.shape[1:-1] == wanted[:-1] and enough


def alike(targets: Tensor) -> Tensor:
    """A `Weigher` for which all targets count alike."""
    return torch.ones(targets.shape)


def _weighted(task: Task, outputs: Tensor, targets: Samples) -> Tensor:
    assert not isinstance(targets, Tensor), "weights come with the targets"
    losses = task.each(outputs, targets.tensors["targets"])
    return (losses * targets.tensors["weights"].to(losses.dtype)).mean()
