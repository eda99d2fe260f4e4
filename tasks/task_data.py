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
from .base import Data, DataSpec, Described, Field, Loaded, Readable, Split, Taken, spread
from .items import held_to_targets
from .losses.base import Task, Weigher


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
        weights = spec.weights or task.weigher() is not None
        if task.argument:
            if task.argument in spec.fields and spec.inputs is not None:
                raise ConfigError(
                    f"task.argument={task.argument}: is an input of the data, too. Leave it out of data.inputs."
                )
            fields: dict[str | int, Field] = {0: spec.fields["inputs"]} if spec.inputs is None else spec.fields
            fields[task.argument] = Field(spec.target_shape, spec.target_dtype)
            return replace(spec, inputs=fields, weights=weights)  # pyright: ignore
        return replace(spec, weights=weights)

    def load(self) -> Loaded:
        """Loads the splits. The weights of a step are over the mean of all replicas, which is made of the targets that
        are known beforehand; so samples are held to these.
        """
        train, test = self._load() if self._task.weigher() is None else held_to_targets(self._load)
        classes = self._source.spec.classes
        return self._seen(train, self._task.weigher(train, classes)), self._seen(test, self._task.weigher())

    def _seen(self, split: Readable, weigh: Weigher | None) -> Readable:
        seen = TaskSplit(split, self._task, weigh)
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

    def __init__(self, split: Readable, task: Task, weigh: Weigher | None) -> None:
        self._split, self._task, self._weigh = split, task, weigh

    def __len__(self) -> int:
        return len(self._split)

    @property
    def targets(self) -> Tensor | None:
        targets = self._split.targets
        return None if targets is None else self._task.without_ignored(targets)

    @property
    def weights(self) -> Tensor | None:
        targets = self._split.targets
        return None if targets is None else self.weights_of(slice(None), targets.shape)

    def take(self, index: Tensor | slice, drawn: int = 0) -> Taken:
        return self.seen(self._split.take(index, drawn))

    def seen(self, taken: Taken) -> Taken:
        """Returns samples as the task sees them."""
        weights = self._weights(taken.targets, taken.weights)
        return Taken(self._inputs(taken), self._task.without_ignored(taken.targets), weights)

    def weights_of(self, index: Tensor | slice, shape: torch.Size) -> Tensor | None:
        """Raises ConfigError where the targets of samples are unknown before they are read."""
        weights = self._split.weights_of(index, shape)
        if self._weigh is None:
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

    def _weights(self, targets: Tensor, of_data: Tensor | None) -> Tensor | None:
        if self._weigh is None:
            return of_data
        weights = self._weigh(targets)
        return weights if of_data is None else weights * spread(of_data, targets.shape).float()


def seen_by(task: Task, data: Data, load: Callable[[], Loaded]) -> Data | None:
    """Returns the data as `task` sees them; None: as they are."""
    return TaskData(data, task, load) if task.argument or task.weigher() is not None else None
