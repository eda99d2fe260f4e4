"""The interface of a data set, and the facts of it that a model must know."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..batches import Fields, Samples, of_each


@dataclass(frozen=True)
class Field:
    """One of several inputs of a sample."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class DataSpec:
    """The facts of the data that a model must know, known without loading them.

    Targets are labels (`target_dtype` int64: numbers of `classes` classes), or numbers to be predicted (a floating
    `target_dtype`: regression; then `classes` is 0). `target_shape` is () for one label or number a sample, (context,)
    for text and (k,) for k numbers. The sizes count samples; None says that they are known only once the file is there.

    `features`: None for dense samples. Else a sample is sparse, with `nonzeros` of so many features: its input is
    [2, nonzeros] float64, the numbers of the features above their values. One that has fewer repeats a feature of its
    own with the value 0 (feature 0, if it has none), so that no other is ever written to.

    `inputs`: None for samples of one tensor. Else a sample is several, by name or in an order, and `input_shape` and
    `input_dtype` say nothing; a model's forward is given them as keyword arguments, or as positional ones.
    `weights`: each sample, or each of its targets, has a weight in the loss and the metric; false and true are a mask.
    `range`: the smallest and the largest value that an input may have, as the model is given it: of black and of white.
    None: there are no such bounds, or nobody knows them. Attacks on inputs count by it (docs/adversarial.md).
    `ignored`: the label of targets that do not count (task.ignore_index), which is none of the classes.
    """

    input_shape: tuple[int, ...] = ()
    input_dtype: torch.dtype = torch.float32
    target_shape: tuple[int, ...] = ()
    classes: int = 0
    train_size: int | None = None
    test_size: int | None = None
    features: int | None = None
    target_dtype: torch.dtype = torch.int64
    inputs: Mapping[str, Field] | tuple[Field, ...] | None = None
    weights: bool = False
    range: tuple[float, float] | None = None
    ignored: int | None = None

    @property
    def fields(self) -> dict[str | int, Field]:
        """Returns the fields of the inputs, by name or index. The field of a single tensor is called "inputs"."""
        if self.inputs is None:
            return {"inputs": Field(self.input_shape, self.input_dtype)}
        return dict(self.inputs.items() if isinstance(self.inputs, Mapping) else enumerate(self.inputs))

    def joined(self, tensors: Mapping[str | int, Tensor]) -> Samples:
        """Inputs of the tensors of each of `fields`."""
        if self.inputs is None:
            return tensors["inputs"]
        return Fields(tensors) if isinstance(self.inputs, Mapping) else Fields([*tensors.values()])

    @property
    def targets(self) -> Literal["labels", "numbers"]:
        return "numbers" if self.target_dtype.is_floating_point else "labels"

    @property
    def outputs(self) -> int:
        """The width of a model's last layer: scores for each label, or the numbers of a sample."""
        return prod(self.target_shape) if self.targets == "numbers" else self.classes


@dataclass(frozen=True)
class Taken:
    """Some samples of a split, in the order in which they were asked for."""

    inputs: Samples
    targets: Tensor
    weights: Tensor | None  # of the shape of targets


class Readable(Protocol):
    """The part of a split that the engine uses: `Split`, and splits that are read on demand (items.py, mapped.py)."""

    @property
    def targets(self) -> Tensor | None:
        """[n, ...]; None where it would take all samples to know them."""

    @property
    def weights(self) -> Tensor | None: ...
    def __len__(self) -> int: ...
    def take(self, index: Tensor | slice, drawn: int = 0) -> Taken:
        """`index`: numbers of samples, int64 [k], or a slice of them. `drawn`: from which random numbers are made,
        where reading a sample takes some. Raises SampleError.
        """
        ...

    def weights_of(self, index: Tensor | slice, shape: torch.Size) -> Tensor | None:
        """Returns the weights of the samples' targets, which have that shape."""


Loaded = tuple[Readable, Readable]


@dataclass(frozen=True)
class Split:
    """inputs [n, *input_shape] and targets [n, *target_shape], in host memory or in files mapped into it. Not to be
    mutated. Of several inputs, a dict or a tuple of such tensors. `weights`, where `spec.weights`: [n] of samples, or
    [n, *target_shape] of targets, 0 or more; true and false are a mask.

    The engine holds them to the data set's `spec` once they are loaded.
    """

    inputs: Tensor | Mapping[str, Tensor] | tuple[Tensor, ...]
    targets: Tensor
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def samples(self) -> Samples:
        """All inputs. Raises AssertionError where they are not of one length."""
        return self.inputs if isinstance(self.inputs, Tensor) else Fields(self.inputs)

    def take(self, index: Tensor | slice, drawn: int = 0) -> Taken:
        """Copies, also of a slice: a model or a loss that changes a batch in place leaves the split as it is."""
        targets = _copied(self.targets, index)
        return Taken(
            of_each(self.samples, lambda each: _copied(each, index)), targets, self.weights_of(index, targets.shape)
        )

    def weights_of(self, index: Tensor | slice, shape: torch.Size) -> Tensor | None:
        if self.weights is None:
            return None
        return spread(_copied(self.weights, index), shape)

    def first(self, n: int | None) -> "Split":
        """The first `n` samples (fewer where there are fewer); None takes all."""
        if n is None:
            return self
        return self.rows(slice(n))

    def rows(self, index: Tensor | slice) -> "Split":
        """Returns these samples; those of a slice are not copied."""
        taken = self.samples[index]
        inputs: Tensor | dict[str, Tensor] | tuple[Tensor, ...]
        if isinstance(taken, Fields):
            positional, named = taken.arguments
            inputs = named or positional
        else:
            inputs = taken
        return Split(inputs, self.targets[index], None if self.weights is None else self.weights[index])


def _copied(tensor: Tensor, index: Tensor | slice) -> Tensor:
    return tensor[index].clone() if isinstance(index, slice) else tensor[index]


def spread(weights: Tensor, shape: torch.Size) -> Tensor:
    """Weights of targets of that shape, of weights of them, or of their samples."""
    return weights if weights.shape == shape else weights.reshape(-1, *[1] * (len(shape) - 1)).expand(shape)


@dataclass(frozen=True)
class Described:
    """Names of a data set's inputs, targets and classes; see contents.py.

    `inputs`: the name of a lone input, or those of its columns; () where it has none, or where `spec.inputs` says them.
    `classes`: in the order of their labels; None: they have numbers alone, or are known once the data are read.
    `seen`: how many different labels there are, where all were looked at.
    `left_out`: files beside the data that are not read.
    `held_from`: the split that was named for both, of which a fifth is for test.
    `is_tested_on_training`: the test set is the training set.
    """

    inputs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    seen: int | None = None
    left_out: tuple[str, ...] = ()
    held_from: str = ""
    is_tested_on_training: bool = False


class Data(ABC):
    """A training and a test split, the same on every machine that has the data.

    A data set of your own needs `spec` and `load`; the rest is for those that may be missing (docs/own_data.md).
    `preload`: modules that loading takes long to import; they are imported once, before workers are forked.
    `reader`: a package that reads them and may be missing.
    `loader_workers`: processes of each worker that read batches ahead; 0: it reads them itself.
    """

    preload: tuple[str, ...] = ()
    reader: str | None = None
    loader_workers: int = 0
    ignored: int | None = None  # the label of targets that do not count, which the engine takes from the task

    @property
    def as_integers(self) -> Mapping[str, object]:
        """Returns the knobs by which inputs that are whole numbers are int64; {}: they are already, or are none."""
        return {}

    @property
    def source(self) -> "Data":
        """Returns the data as they are; those here may be as a task sees them (task_data.py)."""
        return self

    @property
    @abstractmethod
    def spec(self) -> DataSpec:
        """Never loads the data nor needs them."""

    def check_files(self) -> None:
        """Checks before a plan, and in no time, that files that the user named are there. Raises as `load`.

        What `load` fetches, or a package brings, need not be there for a plan.
        """

    @abstractmethod
    def load(self) -> tuple[Readable, Readable]:
        """The training and the test split. Raises MissingDataError or CorruptDataError."""

    def described(self) -> Described:
        """The names of what is in the data, as far as `spec` or `load` came to know them: it reads nothing itself."""
        return Described()

    def how_to_get(self) -> str:
        """One sentence for a person: the ways to get the data."""
        return f"{type(self).__module__}.{type(self).__qualname__}.load() makes or reads them."

    def found(self) -> str | None:
        """Returns where the data are on this machine, without reading them; None when they are missing: `load` fetches
        them.
        """
        return f"where {type(self).__module__}.{type(self).__qualname__}.load() has them"

    def files(self) -> tuple[Path, ...]:
        """Returns the files that `load` reads. A run is not resumed once one of them has other content than when it
        began.
        """
        return ()


def at_most(size: int, limit: int | None) -> int:
    """The number of samples that `Split.first(limit)` leaves of `size`."""
    return size if limit is None else min(size, limit)
