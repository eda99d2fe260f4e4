"""Data as a task sees them: labels that do not count have the weight 0, classes may have weights, and a model with a
loss of its own is given the targets among its inputs.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..batches import Fields, Samples
from ..conf.errors import ConfigError
from .base import Data, DataSpec, Described, Field, Readable, Split, Taken, spread
from .errors import SampleError
from .items import Items
from .losses.base import Task

Loaded = tuple[Readable, Readable]


class TaskData(Data):
    """`source`: the data as they are. `load`: their splits, checked."""

    def __init__(self, source: Data, task: Task, load: Callable[[], Loaded]) -> None:
        self._source, self._task, self._load = source, task, load
        self.preload, self.reader, self.loader_workers = source.preload, source.reader, source.loader_workers

    @property
    def source(self) -> Data:
        return self._source

    @property
    def spec(self) -> DataSpec:
        spec, task = self._source.spec, self._task
        if task.argument:
            if task.argument in spec.fields and spec.inputs is not None:
                raise ConfigError(
                    f"task.argument={task.argument}: is an input of the data, too. Leave it out of data.inputs."
                )
            fields: dict[str | int, Field] = {0: spec.fields["inputs"]} if spec.inputs is None else spec.fields
            fields[task.argument] = Field(spec.target_shape, spec.target_dtype)
            return replace(spec, inputs=fields, weights=spec.weights or _weighs(task))  # pyright: ignore
        return replace(spec, weights=spec.weights or _weighs(task))

    def load(self) -> Loaded:
        train, test = self._load()
        by_class = self._task.class_weights(train.targets, self._source.spec.classes)
        return self._seen(train, by_class), self._seen(test, None)

    def _seen(self, split: Readable, by_class: Tensor | None) -> Readable:
        seen = TaskSplit(split, self._task, by_class)
        if not isinstance(split, Split):
            return seen
        whole = seen.seen(Taken(split.samples, split.targets, split.weights_of(slice(None), split.targets.shape)))
        inputs = whole.inputs
        if not isinstance(inputs, Tensor):
            inputs = inputs.tensors
        return Split(inputs, whole.targets, whole.weights)  # pyright: ignore[reportArgumentType]

    def check_files(self) -> None:
        self._source.check_files()

    def described(self) -> Described:
        return self._source.described()

    def how_to_get(self) -> str:
        return self._source.how_to_get()

    def found(self) -> str | None:
        return self._source.found()

    def files(self) -> tuple[Path, ...]:
        return self._source.files()


class TaskSplit:
    """A split that is read on demand."""

    def __init__(self, split: Readable, task: Task, by_class: Tensor | None) -> None:
        self._split, self._task, self._by_class = split, task, by_class

    def __len__(self) -> int:
        return len(self._split)

    @property
    def targets(self) -> Tensor | None:
        targets = self._split.targets
        return None if targets is None else self._without_ignored(targets)

    @property
    def weights(self) -> Tensor | None:
        targets = self._split.targets
        return None if targets is None else self.weights_of(slice(None), targets.shape)

    def take(self, index: Tensor | slice, drawn: int = 0) -> Taken:
        """Raises SampleError where samples have other targets than their Dataset's attribute says: the weights of a
        step are over the mean of those of all replicas, which is made of the attribute.
        """
        taken = self._split.take(index, drawn)
        if _weighs(self._task) and isinstance(self._split, Items) and self._split.targets is not None:
            known, found = self._split.targets[index].tolist(), taken.targets.tolist()
            if known != found:
                raise SampleError(
                    f"task: the Dataset's attribute `targets`, by which targets are weighed, is {known[:4]} for "
                    f"samples whose targets are {found[:4]}; must be the targets of the samples"
                )
        return self.seen(taken)

    def seen(self, taken: Taken) -> Taken:
        """Returns samples as the task sees them."""
        weights = self._weights(taken.targets, taken.weights) if _weighs(self._task) else taken.weights
        return Taken(self._inputs(taken), self._without_ignored(taken.targets), weights)

    def weights_of(self, index: Tensor | slice, shape: torch.Size) -> Tensor | None:
        """Raises ConfigError where the targets of samples are unknown before they are read."""
        weights = self._split.weights_of(index, shape)
        if not _weighs(self._task):
            return weights
        targets = self._split.targets
        if targets is None:
            raise ConfigError(
                "task: weighs targets, and a replica cannot know the targets of the others before it reads their "
                "samples. Give the Dataset an attribute `targets` with those of all samples, or choose "
                "data=hugging_face, data=arrays or one replica."
            )
        return self._weights(targets[index], weights)

    def _inputs(self, taken: Taken) -> Samples:
        name = self._task.argument
        if not name:
            return taken.inputs
        inputs: dict[str | int, Tensor] = {}
        inputs |= {0: taken.inputs} if isinstance(taken.inputs, Tensor) else taken.inputs.tensors
        return Fields({**inputs, name: taken.targets.clone()})

    def _without_ignored(self, targets: Tensor) -> Tensor:
        ignored = self._task.ignored
        return targets if ignored is None else targets.masked_fill(targets == ignored, 0)

    def _weights(self, targets: Tensor, of_data: Tensor | None) -> Tensor:
        weights = torch.ones(targets.shape) if of_data is None else spread(of_data, targets.shape).float()
        if self._by_class is not None:
            weights = weights * self._by_class[self._without_ignored(targets)]
        if self._task.ignored is not None:
            weights = weights.masked_fill(targets == self._task.ignored, 0.0)
        if self._task.leaves_first:
            weights = weights.clone()
            weights[:, :1] = 0.0
        return weights


def seen_by(task: Task, data: Data, load: Callable[[], Loaded]) -> Data | None:
    """Returns the data as `task` sees them; None: as they are."""
    return TaskData(data, task, load) if task.argument or _weighs(task) else None


def _weighs(task: Task) -> bool:
    return task.ignored is not None or task.leaves_first or task.weighs_classes
