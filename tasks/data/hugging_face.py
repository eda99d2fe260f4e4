"""A data set of Hugging Face's `datasets` that was saved on this disk (`save_to_disk`). It may be larger than memory.

pip install 'paceline[datasets]'. Nothing is downloaded, and no code of a data set is run.
"""

from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, MinLen
from torch import Tensor

from ..base import Data, DataSpec, Field
from ..columns import Columns, stored_dtype
from ..errors import CorruptDataError, MissingDataError, SampleError, TaskConfigError
from .files import folder_of
from .parts import Kind, asked, check_there, chosen, count_classes, fifth, kind_of, sizes


class HuggingFace(Data):
    """Columns of numbers, or of lists of them of one length: `inputs`, `targets`, and maybe `weights` (a mask).

    One input is a model's only argument; several are keyword arguments by their names. Of a DatasetDict the splits
    `train` and `test` are taken; of a Dataset a fixed fifth is for test.
    """

    preload = ("datasets",)

    def __init__(
        self,
        path: str | None = None,
        inputs: str | Annotated[list[str], MinLen(1)] | None = None,
        targets: str = "label",
        weights: str | None = None,
        train: str = "train",
        test: str = "test",
        kind: Kind | None = None,
        classes: Annotated[int, Ge(2)] | None = None,
        limit: Annotated[int, Ge(1)] | None = None,
        loader_workers: Annotated[int, Ge(0)] = 0,
    ) -> None:
        self.path = asked(path)
        self.inputs, self.targets, self.weights, self.train, self.test = inputs, targets, weights, train, test
        self.kind: Kind | None = kind
        self.classes, self.limit, self.loader_workers = classes, limit, loader_workers

    @cached_property
    def _opened(self) -> tuple[Any, Any]:
        """The training and the test split; of a Dataset it is the same, and there is no other."""
        check_there("data.path=saved", self.how_to_get(), self.path)
        if folder_of("datasets") is None:
            raise MissingDataError("data=hugging_face: datasets is not installed: pip install 'paceline[datasets]'")
        library = import_module("datasets")
        try:
            found = library.load_from_disk(str(self.path))
        except Exception as error:  # of whatever kind: a file of Arrow's, JSON, a key that is not there
            raise CorruptDataError(
                f"{self.path} is no data set that was saved: {' '.join(str(error).split())}"
            ) from error
        if not isinstance(found, library.DatasetDict):
            return found, found
        for key, name in (("train", self.train), ("test", self.test)):
            chosen([*found], name, f"data.{key}", str(self.path))
        return found[self.train], found[self.test]

    @cached_property
    def spec(self) -> DataSpec:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Reads the first sample, and to count classes the column of targets."""
        train, test = self._opened
        names = self._inputs(train)
        if len(train) == 0:
            raise TaskConfigError(f"{self.path} has no samples")
        first = torch.tensor([0])
        read = {name: self._column(train, name)(first) for name in (*names, self.targets)}
        fields = {name: Field(tuple(read[name].shape[1:]), stored_dtype(read[name].dtype)) for name in names}
        target = read[self.targets]
        kind = kind_of(target.dtype, tuple(target.shape[1:]), self.kind)
        size, held = sizes(len(train), None if train is test else len(test), self.limit)
        lone = fields[names[0]]
        return DataSpec(
            input_shape=lone.shape,
            input_dtype=lone.dtype,
            target_shape=tuple(target.shape[1:]),
            classes=0 if kind == "numbers" else self.classes or self._count(train, target),
            train_size=size,
            test_size=held,
            target_dtype=torch.float32 if kind == "numbers" else torch.int64,
            inputs=None if len(names) == 1 else fields,
            weights=self.weights is not None,
            range=(0.0, 1.0) if read[names[0]].dtype == torch.uint8 else None,
        )

    def _count(self, train: Any, first: Tensor) -> int:
        told = getattr(train.features[self.targets], "names", None)  # a ClassLabel
        if told:
            return max(len(told), 2)
        column = self._column(train, self.targets)
        where = f"the targets {self.targets!r} of {self.path}"
        return count_classes(
            lambda rows: column(torch.arange(len(train))), first.dtype, len(train) * first.numel(), where
        )

    def load(self) -> tuple[Columns, Columns]:
        spec, (train, test) = self.spec, self._opened
        first, second = (self._columns(data, spec, split) for data, split in ((train, "train"), (test, "test")))
        if train is not test:
            return first.first(self.limit), second
        own, held = fifth(len(train), f"data.path={self.path}")
        return first.rows(own).first(self.limit), second.rows(held)

    def _columns(self, data: Any, spec: DataSpec, split: str) -> Columns:
        inputs = dict(zip(spec.fields, (self._column(data, name) for name in self._inputs(data)), strict=True))
        weights = None if self.weights is None else self._column(data, self.weights)
        told = self._column(data, self.targets), weights, spec, f"{self.path}, {split} split"
        return Columns(inputs, *told, len(data))

    def _column(self, data: Any, name: str) -> "_Column":
        return _Column(data.select_columns([name]).with_format("torch"), name, f"{self.path}")

    def _inputs(self, data: Any) -> list[str]:
        names: list[str] = data.column_names
        others = [name for name in (self.targets, self.weights) if name is not None]
        chosen(names, others[:1], "data.targets", str(self.path))
        chosen(names, others[1:], "data.weights", str(self.path))
        wanted = [name for name in names if name not in others] if self.inputs is None else self.inputs
        return chosen(names, wanted, "data.inputs", str(self.path))

    def how_to_get(self) -> str:
        return "Set data.path to the folder of a data set that was saved by save_to_disk of Hugging Face's datasets."

    def found(self) -> str | None:
        return None if self.path is None or not self.path.exists() else str(self.path)

    def files(self) -> tuple[Path, ...]:
        return () if self.path is None else tuple(sorted(self.path.rglob("*.arrow")))


class _Column:
    def __init__(self, data: Any, name: str, where: str) -> None:
        self._data, self._name, self._where = data, name, where

    def __call__(self, rows: Tensor) -> Tensor:
        """Raises SampleError where they are no numbers, or lists of several lengths."""
        found = self._data[rows.tolist()][self._name]
        if not isinstance(found, Tensor):
            kinds = {str(tuple(each.shape)) if isinstance(each, Tensor) else type(each).__name__ for each in found}
            raise SampleError(
                f"{self._where}: column {self._name} has {', '.join(sorted(kinds)[:3])} in one batch; "
                "must be numbers, or lists of one length (map them to such before save_to_disk)"
            )
        return found
