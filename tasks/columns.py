"""A split of columns on a disk, of which the rows of a batch are read at once: larger than memory."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .base import DataSpec, Taken, spread
from .errors import SampleError
from .items import check_target, numbered

PIECE = 1 << 16  # samples that are looked at together
Column = Callable[[Tensor], Tensor]  # numbers of rows [k] -> their values [k, ...]


class Columns:
    """The rows `numbers` of columns (None: all `size`): those of `spec.fields`, "targets" and, where `spec.weights`,
    "weights". Values become what `spec` says as they are read. `what` begins each sentence of an error.
    """

    def __init__(
        self,
        inputs: Mapping[str | int, Column],
        targets: Column,
        weights: Column | None,
        spec: DataSpec,
        what: str,
        size: int,
        numbers: Tensor | None = None,
    ) -> None:
        self._inputs, self._read_targets, self._read_weights = inputs, targets, weights
        self._spec, self._what, self._size, self._numbers = spec, what, size, numbers

    def __len__(self) -> int:
        return self._size if self._numbers is None else len(self._numbers)

    @property
    def targets(self) -> Tensor:
        """Reads those of all rows."""
        return self._targets_at(self._rows(slice(None)))

    @property
    def weights(self) -> Tensor | None:
        return None if self._read_weights is None else self._weights_at(self._rows(slice(None)))

    def take(self, index: Tensor | slice, drawn: int = 0) -> Taken:
        rows = self._rows(index)
        read = {key: as_wanted(column(rows), self._spec.fields[key].dtype) for key, column in self._inputs.items()}
        targets = self._targets_at(rows)
        return Taken(self._spec.joined(read), targets, self.weights_of(index, targets.shape))

    @property
    def counts(self) -> bool:
        """Returns True if a sample has a weight above 0, or there are no weights."""
        if self._read_weights is None:
            return True
        pieces = (self._rows(slice(start, start + PIECE)) for start in range(0, len(self), PIECE))
        return any(bool((self._weights_at(piece) > 0).any()) for piece in pieces)

    def weights_of(self, index: Tensor | slice, shape: torch.Size) -> Tensor | None:
        if self._read_weights is None:
            return None
        return spread(self._weights_at(self._rows(index)), shape)

    def first(self, n: int | None) -> "Columns":
        return self if n is None or n >= len(self) else self.rows(self._rows(slice(0, n)))

    def rows(self, numbers: Tensor) -> "Columns":
        """Those of the whole table."""
        told = self._inputs, self._read_targets, self._read_weights, self._spec, self._what, self._size
        return Columns(*told, numbers)

    def _rows(self, index: Tensor | slice) -> Tensor:
        return numbered(index, self._size) if self._numbers is None else self._numbers[index]

    def _targets_at(self, rows: Tensor) -> Tensor:
        targets = as_wanted(self._read_targets(rows), self._spec.target_dtype)
        try:
            check_target(targets, self._spec, self._what)
        except SampleError:
            for row, target in zip(rows.tolist(), targets, strict=True):
                check_target(target, self._spec, f"{self._what}, sample {row}")
            raise
        return targets

    def _weights_at(self, rows: Tensor) -> Tensor:
        assert self._read_weights is not None
        weights = self._read_weights(rows)
        wrong = (~weights.isfinite() | (weights < 0)).reshape(len(rows), -1).any(dim=1).nonzero()
        if len(wrong):
            raise SampleError(f"{self._what}, sample {int(rows[wrong[0]])}: its weight is negative or not finite")
        return weights


def as_wanted(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Of bytes (uint8) that are to be floating, numbers from 0 to 1; anything else as it is."""
    if values.dtype == torch.uint8 and dtype.is_floating_point:
        return values.to(dtype) / 255
    return values.to(dtype)


def given_dtype(dtype: torch.dtype, floats: bool = False) -> torch.dtype:
    """Returns the dtype in which a model is given values stored as `dtype`: float32 for floating ones and bytes, true
    and false as they are, else int64. `floats`: float32 for all.
    """
    if floats:
        return torch.float32
    if dtype == torch.bool:
        return dtype
    return torch.float32 if dtype.is_floating_point or dtype == torch.uint8 else torch.int64
