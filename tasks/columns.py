"""A split of columns on a disk, of which the rows of a batch are read at once: larger than memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import DataSpec, Field, Taken, spread
from .errors import SampleError
from .items import check_target, converted, numbered

PIECE = 1 << 16  # samples that are looked at together


@dataclass(frozen=True)
class FileColumn:
    """A column of a file. `read`: numbers of rows [k] -> their values [k, ...]."""

    name: str
    read: Callable[[Tensor], Tensor]


class Columns:
    """The rows `numbers` of columns (None: all `size`): those of `spec.fields`, "targets" and, where `spec.weights`,
    "weights". Values become what `spec` says as they are read. `what` begins each sentence of an error.
    """

    def __init__(
        self,
        inputs: Mapping[str | int, FileColumn],
        targets: FileColumn,
        weights: FileColumn | None,
        spec: DataSpec,
        what: str,
        size: int,
        numbers: Tensor | None = None,
    ) -> None:
        self._inputs, self._targets, self._weights = inputs, targets, weights
        self._spec, self._what, self._size, self._numbers = spec, what, size, numbers

    def __len__(self) -> int:
        return self._size if self._numbers is None else len(self._numbers)

    @property
    def targets(self) -> Tensor:
        """Reads those of all rows."""
        return self._targets_at(self._rows(slice(None)))

    @property
    def weights(self) -> Tensor | None:
        return None if self._weights is None else self._weights_at(self._rows(slice(None)))

    def take(self, index: Tensor | slice, drawn: int = 0) -> Taken:
        rows = self._rows(index)
        read = {key: self._input_at(rows, self._inputs[key], field) for key, field in self._spec.fields.items()}
        targets = self._targets_at(rows)
        return Taken(self._spec.joined(read), targets, self.weights_of(index, targets.shape))

    @property
    def counts(self) -> bool:
        """Returns True if a sample has a weight above 0, or there are no weights."""
        if self._weights is None:
            return True
        pieces = (self._rows(slice(start, start + PIECE)) for start in range(0, len(self), PIECE))
        return any(bool((self._weights_at(piece) > 0).any()) for piece in pieces)

    def weights_of(self, index: Tensor | slice, shape: torch.Size) -> Tensor | None:
        if self._weights is None:
            return None
        return spread(self._weights_at(self._rows(index)), shape)

    def first(self, n: int | None) -> "Columns":
        return self if n is None or n >= len(self) else self.rows(self._rows(slice(0, n)))

    def rows(self, numbers: Tensor) -> "Columns":
        """Returns these rows of the whole table."""
        told = self._inputs, self._targets, self._weights, self._spec, self._what, self._size
        return Columns(*told, numbers)

    def _rows(self, index: Tensor | slice) -> Tensor:
        return numbered(index, self._size) if self._numbers is None else self._numbers[index]

    def _read(self, rows: Tensor, column: FileColumn, shape: tuple[int, ...]) -> Tensor:
        """Raises SampleError for values of another shape than `shape`."""
        values = column.read(rows)
        if len(rows) and tuple(values.shape[1:]) != tuple(shape):
            raise SampleError(
                f"{self._what}, sample {int(rows[0])}: {column.name} is {list(values.shape[1:])}; must be {list(shape)}"
            )
        return values

    def _input_at(self, rows: Tensor, column: FileColumn, field: Field) -> Tensor:
        """Bytes (uint8) that are to be floating become numbers from 0 to 1."""
        values = self._read(rows, column, field.shape)
        if values.dtype == torch.uint8 and field.dtype.is_floating_point:
            return values.to(field.dtype) / 255
        return converted(values, field.dtype, lambda row: f"{self._what}, sample {int(rows[row])}: {column.name}")

    def _targets_at(self, rows: Tensor) -> Tensor:
        called = "its label" if self._spec.targets == "labels" else f"its target {self._targets.name!r}"
        targets = converted(
            self._read(rows, self._targets, self._spec.target_shape),
            self._spec.target_dtype,
            lambda row: f"{self._what}, sample {int(rows[row])}: {called}",
        )
        try:
            check_target(targets, self._spec, self._what)
        except SampleError:
            for row, target in zip(rows.tolist(), targets, strict=True):
                check_target(target, self._spec, f"{self._what}, sample {row}")
            raise
        return targets

    def _weights_at(self, rows: Tensor) -> Tensor:
        assert self._weights is not None
        weights = self._weights.read(rows)
        shape = tuple(weights.shape[1:])
        if len(rows) and shape not in ((), tuple(self._spec.target_shape)):
            also = f", or {list(self._spec.target_shape)}" if self._spec.target_shape else ""
            raise SampleError(
                f"{self._what}, sample {int(rows[0])}: its weight {self._weights.name!r} is {list(shape)}; must be one "
                f"number{also}"
            )
        wrong = (~weights.isfinite() | (weights < 0)).reshape(len(rows), -1).any(dim=1).nonzero()
        if len(wrong):
            raise SampleError(f"{self._what}, sample {int(rows[wrong[0]])}: its weight is negative or not finite")
        return weights


def given_dtype(dtype: torch.dtype, floats: bool = False) -> torch.dtype:
    """Returns the dtype in which a model is given values stored as `dtype`: float32 for floating ones and bytes, true
    and false as they are, else int64. `floats`: float32 for all.
    """
    if floats:
        return torch.float32
    if dtype == torch.bool:
        return dtype
    return torch.float32 if dtype.is_floating_point or dtype == torch.uint8 else torch.int64
