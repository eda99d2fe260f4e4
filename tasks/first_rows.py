"""The first rows of a data set as a model gets them: names, types, shapes, ranges and values."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Data, Readable
from .contents import safe, some, told_first

ROWS = 5
VALUES = 6  # of a row that are shown


@dataclass(frozen=True)
class ShownTensor:
    """One tensor of the rows.

    Args:
        columns: the names of its entries, where they have some; all of them.
        shape: of one row.
        least: the smallest finite value in these rows; None if there is none.
        values: the first few values of each row.
    """

    name: str
    columns: list[str]
    type: str
    shape: list[int]
    least: float | None
    most: float | None
    values: list[list[float]]


@dataclass(frozen=True)
class FirstRows:
    """`of`: the number of training samples. `classes`: 0 for targets that are numbers."""

    of: int
    inputs: list[ShownTensor]
    targets: ShownTensor
    weights: ShownTensor | None
    classes: int
    class_names: list[str]  # of all classes, in the order of their labels; empty if they have none

    @property
    def tensors(self) -> list[ShownTensor]:
        return [*self.inputs, self.targets, *([] if self.weights is None else [self.weights])]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def described(self) -> list[str]:
        """Returns a line for each tensor."""
        return [f"{each.name}: {self._described(each)}" for each in self.tensors]

    def _described(self, tensor: ShownTensor) -> str:
        numbers = "no finite value" if tensor.least is None else f"{tensor.least:.4g} to {tensor.most:.4g}"
        told = f"{tensor.type} {tensor.shape}, {numbers} in these rows"
        if tensor is not self.targets or not self.classes:
            return told
        names = f" ({some(told_first(self.class_names), self.classes)})" if self.class_names else ""
        return f"{told}, {self.classes:,} classes{names}"

    def table(self) -> list[list[str]]:
        """Returns a header and a line for each row."""
        header, lines = ["row"], [[f"{row + 1}"] for row in range(len(self.targets.values))]
        for tensor in self.tensors:
            titles, cells = self._cells(tensor)
            header += titles
            for line, some_cells in zip(lines, cells, strict=True):
                line += some_cells
        return [header, *lines]

    def _cells(self, tensor: ShownTensor) -> tuple[list[str], list[list[str]]]:
        size, numbers = math.prod(tensor.shape), [[_number(each) for each in row] for row in tensor.values]
        if tensor is self.targets and self.class_names and not tensor.shape:
            return [tensor.name], [[self._label(int(row[0]))] for row in tensor.values]
        if tensor.columns:
            rest = [f"... {size:,} in all"] if size > VALUES else []
            titles = [safe(name) for name in tensor.columns[:VALUES]]
            return [*titles, *rest], [[*row, *("" for _ in rest)] for row in numbers]
        rest = f" ... {size:,} in all" if size > VALUES else ""
        return [tensor.name], [[" ".join(row) + rest] for row in numbers]

    def _label(self, label: int) -> str:
        return f"{label} ({safe(self.class_names[label])})" if 0 <= label < len(self.class_names) else str(label)


def first_rows(data: Data, train: Readable) -> FirstRows:
    """Returns the first rows of the training split `train` of `data`. Raises `SampleError`."""
    spec, told = data.spec, data.described()
    taken = train.take(slice(0, min(ROWS, len(train))))
    tensors = [taken.inputs] if isinstance(taken.inputs, Tensor) else [*taken.inputs.tensors.values()]
    names = [*map(str, spec.fields)] if spec.inputs is not None or len(told.inputs) != 1 else [*told.inputs]
    lone = spec.inputs is None and len(told.inputs) > 1
    target = told.targets[0] if len(told.targets) == 1 else "targets"
    return FirstRows(
        len(train),
        [_shown(name, tensor, told.inputs if lone else ()) for name, tensor in zip(names, tensors, strict=True)],
        _shown(target, taken.targets, told.targets if len(told.targets) > 1 else ()),
        None if taken.weights is None else _shown("weights", taken.weights, ()),
        spec.classes,
        [*(told.classes or ())],
    )


def _shown(name: str, tensor: Tensor, columns: Sequence[str]) -> ShownTensor:
    values = tensor.flatten(1) if tensor.ndim > 1 else tensor.unsqueeze(1)
    finite = values.double()[torch.isfinite(values)]
    least, most = (None, None) if finite.numel() == 0 else (finite.min().item(), finite.max().item())
    named = list(columns) if len(columns) == values.shape[1] else []
    kind, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape[1:])
    return ShownTensor(safe(name), named, kind, shape, least, most, values[:, :VALUES].tolist())


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
