"""A table from a file of your own: CSV, or Parquet. It is held in memory; larger ones are for data=arrays.

pyarrow reads them: pip install 'paceline[tables]'.
"""

import os
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, MinLen
from torch import Tensor

from ..base import Data, DataSpec, Split
from ..errors import CorruptDataError, MissingDataError, TaskConfigError
from .files import folder_of, open_data
from .parts import Kind, asked, check_there, chosen, fifth

SUFFIXES = (".csv", ".tsv", ".parquet")
MOST_COUNTED = 1 << 26  # bytes of a file that is read to count classes, where nobody says how many there are


class Table(Data):
    """`inputs`: the columns of numbers that are the input, [columns] float32 (null: all that are nothing else);
    `targets`: one column, or several of numbers; `weights`: a column of them.

    Targets that are text, whole numbers, or true and false are labels: their values in order are the classes 0, 1, ...
    of the training file. Floating ones are numbers. `standardize`: inputs, and targets that are numbers, to mean 0 and
    deviation 1 of the training samples. A fixed fifth is for test, unless there is a `test_path`.
    """

    preload = ("pyarrow.csv", "pyarrow.parquet")

    def __init__(
        self,
        path: str | None = None,
        test_path: str | None = None,
        inputs: str | Annotated[list[str], MinLen(1)] | None = None,
        targets: str | Annotated[list[str], MinLen(1)] = "target",
        weights: str | None = None,
        kind: Kind | None = None,
        classes: Annotated[int, Ge(2)] | None = None,
        standardize: bool = True,
        limit: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        self.path, self.test_path = asked(path), asked(test_path)
        self.inputs, self.weights, self.standardize, self.limit = inputs, weights, standardize, limit
        self.targets = [targets] if isinstance(targets, str) else list(targets)
        self.kind: Kind | None = kind
        self.classes = classes

    @cached_property
    def spec(self) -> DataSpec:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Reads the names and types of columns; to count classes, a file of up to 64 MiB."""
        self._check()
        assert self.path is not None
        schema = self._schema(self.path)
        kind = self._kind(schema)
        for path in (self.path, self.test_path):
            if path is not None:
                self._check_types(self._schema(path), path, kind)
        classes = 0
        if kind == "labels":
            classes = self.classes or self._count()
        return DataSpec(
            input_shape=(len(self._inputs(schema, self.path)),),
            target_shape=() if len(self.targets) == 1 else (len(self.targets),),
            classes=classes,
            target_dtype=torch.int64 if kind == "labels" else torch.float32,
            weights=self.weights is not None,
        )

    def _count(self) -> int:
        assert self.path is not None
        if self.path.stat().st_size > MOST_COUNTED:
            raise TaskConfigError(f"data.classes=null: {self.path} is too large to count them beforehand; say how many")
        return max(len(np.unique(self._column(self._read(self.path), self.targets[0], self.path))), 2)

    def load(self) -> tuple[Split, Split]:
        spec = self.spec
        assert self.path is not None
        whole = self._read(self.path)
        known = None
        if spec.targets == "labels":
            known = np.unique(self._column(whole, self.targets[0], self.path))
            if len(known) > spec.classes:
                raise TaskConfigError(f"data.classes={spec.classes}: {self.path} has {len(known)} different labels")
        train = self._split(whole, self.path, spec, known)
        if self.test_path is not None:
            test = self._split(self._read(self.test_path), self.test_path, spec, known)
        else:
            first, second = fifth(len(train), f"data.path={self.path}")
            train, test = _rows(train, first), _rows(train, second)
        train = train.first(self.limit)
        return self._standardized(train, train, spec), self._standardized(test, train, spec)

    def _standardized(self, split: Split, by: Split, spec: DataSpec) -> Split:
        if not self.standardize:
            return split
        assert isinstance(split.inputs, Tensor) and isinstance(by.inputs, Tensor)
        targets = _standard(split.targets, by.targets) if spec.targets == "numbers" else split.targets
        return Split(_standard(split.inputs, by.inputs), targets, split.weights)

    def _split(self, table: Any, path: Path, spec: DataSpec, known: np.ndarray | None) -> Split:
        names = self._inputs(table.schema, path)
        inputs = np.stack([self._numbers(table, name, path) for name in names], axis=1)
        if known is not None:
            column = self._column(table, self.targets[0], path)
            strange = np.setdiff1d(column, known)
            if len(strange):
                raise CorruptDataError(f"{path}: {self.targets[0]} has {strange[0]!r}, which {self.path} has not")
            targets = torch.from_numpy(np.searchsorted(known, column)).long()
        else:
            columns = [self._numbers(table, name, path) for name in self.targets]
            targets = torch.from_numpy(np.stack(columns, axis=1)).float().reshape(len(inputs), *spec.target_shape)
        weights = None if self.weights is None else torch.from_numpy(self._numbers(table, self.weights, path)).float()
        return Split(torch.from_numpy(inputs).float(), targets, weights)

    # -- columns

    def _inputs(self, schema: Any, path: Path) -> list[str]:
        others = [*self.targets, *([self.weights] if self.weights else [])]
        if self.inputs is not None:
            return chosen(schema.names, self.inputs, "data.inputs", str(path))
        names = [name for name in schema.names if name not in others]
        if not names:
            raise TaskConfigError(f"{path} has no columns beside {', '.join(others)}, so that there are no inputs")
        return names

    def _kind(self, schema: Any) -> Kind:
        types = [str(schema.field(name).type) for name in self.targets]
        floating = all(each in ("double", "float", "halffloat") for each in types)
        kind: Kind = self.kind or ("numbers" if floating or len(types) > 1 else "labels")
        if kind == "labels" and len(types) > 1:
            raise TaskConfigError(
                f"data.targets={self.targets}: labels are one column of {self.path}; data.kind=numbers takes several"
            )
        return kind

    def _check_types(self, schema: Any, path: Path, kind: Kind) -> None:
        """Raises TaskConfigError for a column that has to be numbers, and by the head of the file is not."""
        types = import_module("pyarrow").types

        def is_number(name: str) -> bool:
            found = schema.field(name).type
            tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)  # null: nothing in the head
            return any(test(found) for test in tests)

        inputs = self._inputs(schema, path)
        others = [*(self.targets if kind == "numbers" else []), *([self.weights] if self.weights else [])]
        for name in (*inputs, *others):
            if is_number(name):
                continue
            numbers = [each for each in inputs if is_number(each)]
            how = f", or left out: data.inputs=[{','.join(numbers)}]" if name in inputs and numbers else ""
            key = "inputs" if name in inputs else "targets" if name in self.targets else "weights"
            raise TaskConfigError(
                f"data.{key}: column {name} of {path} is {schema.field(name).type}; must be numbers{how}"
            )

    def _column(self, table: Any, name: str, path: Path) -> np.ndarray:
        """Raises CorruptDataError where there is nothing in a row."""
        column = table.column(name)
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise CorruptDataError(f"{path}: column {name} has nothing in row {row} (the first after the names is 0)")
        return column.to_numpy()

    def _numbers(self, table: Any, name: str, path: Path) -> np.ndarray:
        """Raises TaskConfigError or CorruptDataError."""
        column = self._column(table, name, path)
        if column.dtype.kind not in "biuf":
            raise TaskConfigError(
                f"{path}: column {name} is {table.schema.field(name).type} (such as {column[0]!r}); must be numbers, "
                "or left out of data.inputs"
            )
        values = column.astype(np.float64)
        strange = np.flatnonzero(~np.isfinite(values))
        if len(strange):
            raise CorruptDataError(f"{path}: column {name} is NaN or infinite in row {strange[0]} (from 0 on)")
        return values

    # -- files

    def _schema(self, path: Path) -> Any:
        if path.suffix == ".parquet":
            schema = _with(path, lambda file: _arrow("parquet").ParquetFile(file).schema_arrow)
        else:
            schema = _with(path, lambda file: _arrow("csv").open_csv(file, parse_options=_options(path)).schema)
        if len(schema.names) == 1 and any(mark in schema.names[0] for mark in ";\t"):
            raise TaskConfigError(
                f"{path}: has one column, {schema.names[0]!r}; a .csv file is read with commas between columns, and a "
                ".tsv file with tabs"
            )
        wanted = [*self.targets, *([self.weights] if self.weights else [])]
        chosen(schema.names, wanted[: len(self.targets)], "data.targets", str(path))
        chosen(schema.names, wanted[len(self.targets) :], "data.weights", str(path))
        return schema

    def _read(self, path: Path) -> Any:
        self._schema(path)
        if path.suffix == ".parquet":
            table = _with(path, lambda file: _arrow("parquet").read_table(file))
        else:
            table = _with(path, lambda file: _arrow("csv").read_csv(file, parse_options=_options(path)))
        if table.num_rows == 0:
            raise TaskConfigError(f"{path} has no rows")
        return table

    def _check(self) -> None:
        check_there("data.path=houses.csv data.targets=price", self.how_to_get(), self.path, self.test_path)
        if folder_of("pyarrow") is None:
            raise MissingDataError(
                "data=table: pyarrow, which reads tables, is not installed: pip install 'paceline[tables]'"
            )
        for path in (self.path, self.test_path):
            if path is not None and path.suffix not in SUFFIXES:
                raise TaskConfigError(f"{path}: must be one of {', '.join(SUFFIXES)}")

    def how_to_get(self) -> str:
        return "Set data.path to a .csv, .tsv or .parquet file, and data.targets to the name of a column."

    def found(self) -> str | None:
        paths = self.files()
        return os.pathsep.join(map(str, paths)) if self.path and all(path.exists() for path in paths) else None

    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.path, self.test_path) if path is not None)


def _arrow(module: str) -> Any:
    return import_module(f"pyarrow.{module}")  # a third of a second: only where it is needed


def _options(path: Path) -> Any:
    return _arrow("csv").ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")


def _with(path: Path, read: Any) -> Any:
    """Raises CorruptDataError."""
    invalid: Any = import_module("pyarrow").ArrowInvalid
    with open_data(path) as file:
        try:
            return read(file)
        except (invalid, OSError, UnicodeDecodeError) as error:
            raise CorruptDataError(f"{path} cannot be read: {' '.join(str(error).split())[:300]}") from error


def _rows(split: Split, numbers: Tensor) -> Split:
    taken = split.take(numbers)
    assert isinstance(taken.inputs, Tensor)
    return Split(taken.inputs, taken.targets, taken.weights if split.weights is None else split.weights[numbers])


def _standard(values: Tensor, by: Tensor) -> Tensor:
    """A column that is the same everywhere becomes 0."""
    deviation = by.double().std(0, correction=0)
    scaled = (values.double() - by.double().mean(0)) / torch.where(deviation > 0, deviation, 1.0)
    return scaled.float()
