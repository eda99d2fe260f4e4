"""A table from a file of your own: CSV, JSON lines or Parquet. It is held in memory; larger ones are for data=arrays.

pyarrow reads them: pip install 'paceline[tables]'.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, MinLen
from torch import Tensor

from ...conf.errors import ConfigError
from ...conf.grammar import typed
from ..base import Data, DataSpec, Described, Field, Split, at_most
from ..contents import folded
from ..errors import CorruptDataError, MissingDataError
from .files import asked, check_fits, folder_of, unpacked
from .parts import (
    Kind,
    are_ignored,
    are_one,
    check_like,
    check_there,
    chosen,
    class_names,
    class_numbers,
    fifth,
    inputs_of,
    sizes,
)
from .sequences import LENGTH, check_tokens, is_list, is_text, list_column, tokenizer
from .table_columns import LARGEST, check_label, column_of, integers_of, numbers_of
from .table_files import (
    SUFFIXES,
    Head,
    as_written,
    check_exact,
    columns_of_json,
    columns_of_parquet,
    columns_of_text,
    form,
    head_of,
    in_words,
    value_type,
    with_type_of,
)

MOST_COUNTED = 1 << 26  # bytes of a file that is read to count classes, where nobody says how many there are
NUMBERS = "numbers"  # the input of all columns that are neither integers nor lists nor text


class Table(Data):
    """`inputs`: the columns of numbers that are the input, [columns] float32 (null: all that are nothing else);
    `targets`: one column, or several of numbers; `weights`: a column of them. `integers`: the columns of whole numbers
    that are given as int64 (true: all; false: none, lists included; null: lists, and the others if all inputs are whole
    numbers and the model does not take floats). If only some inputs are, each is a keyword argument by its name, and
    the other columns are one by the name `numbers`.
    A column of lists, and one of text, is an input of its own, too, [length]: `tokens` says how text becomes int64
    (bytes, or a file of the package tokenizers), and `length` to how many entries rows are cut or filled with 0.

    Targets that are text, whole numbers, or true and false are labels: their values in order are the classes 0, 1, ...
    of the training file. Floating ones are numbers. `standardize`: inputs, and targets that are numbers, to mean 0 and
    deviation 1 of the training samples. A fixed fifth is for test, unless there is a `test_path`.
    """

    preload = ("pyarrow.csv", "pyarrow.json", "pyarrow.parquet")
    reader = "pyarrow"

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
        integers: bool | Annotated[list[str], MinLen(1)] | None = None,
        tokens: str | None = None,
        length: Annotated[int, Ge(1)] | None = None,
        limit: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        self.tokens, self.length = tokens, length
        self.path, self.test_path = asked(path), asked(test_path, "test_path")
        self.inputs, self.weights, self.standardize, self.limit = inputs, weights, standardize, limit
        self.targets = [targets] if isinstance(targets, str) else list(targets)
        self.kind: Kind | None = kind
        self.classes, self.integers = classes, integers
        self._classes: tuple[str, ...] | None = None  # once they are known

    @cached_property
    def spec(self) -> DataSpec:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Reads the names and types of columns; to count classes, a file of up to 64 MiB."""
        self._check()
        assert self.path is not None
        head = self._schema(self.path)
        kind = self._kind(head.types)
        for path in (self.path, self.test_path):
            if path is not None:
                its = head if path == self.path else self._schema(path)
                self._check_types(its, path, kind)
                if its.is_empty:
                    self._read(path)  # says so, unless the names of its columns fill the head
        size = head.rows
        if kind == "labels" and self.classes is None:
            whole = self._counted()
            kind, size = self._kind(whole.schema), whole.num_rows
            if kind == "labels":
                self._labels(whole)
        held = None if self.test_path is None else self._schema(self.test_path).rows
        train, test = self._sizes(size, held)
        fields = {name: part.field for name, part in self._parts.items()}
        lone = next(iter(fields.values()))
        return DataSpec(
            input_shape=lone.shape,
            input_dtype=lone.dtype,
            target_shape=() if len(self.targets) == 1 else (len(self.targets),),
            classes=0 if kind == "numbers" else self.classes or max(len(self._classes or ()), 2),
            train_size=train,
            test_size=test,
            target_dtype=torch.int64 if kind == "labels" else torch.float32,
            inputs=None if len(fields) == 1 else fields,
            ignored=self.ignored,
            weights=self.weights is not None,
        )

    def _sizes(self, size: int | None, held: int | None) -> tuple[int | None, int | None]:
        """Returns the sizes of the training and the test split that are known without reading a file."""
        if size is None:
            return None, held
        if self.test_path is None:
            return sizes(size, None, self.limit, f"data.path={self.path}")
        return at_most(size, self.limit), held

    def _counted(self) -> Any:
        """The whole table, to look at the targets of all rows."""
        assert self.path is not None
        packed = self.path.suffix.lower() == ".gz"
        if (len(unpacked(self.path, MOST_COUNTED + 1)) if packed else self.path.stat().st_size) > MOST_COUNTED:
            raise ConfigError(f"data.classes=null: {self.path} is too large to count them beforehand; say how many")
        return self._read(self.path)

    def load(self) -> tuple[Split, Split]:
        spec = self.spec
        assert self.path is not None
        whole = self._read(self.path)
        known = of_targets = None
        if spec.targets == "labels":
            if self._kind(whole.schema) == "numbers":
                raise ConfigError(
                    f"data.kind=null: column {self.targets[0]} of {self.path} begins with whole numbers and has "
                    "fractions further down. Choose data.kind=numbers or labels."
                )
            of_targets = value_type(whole.schema.field(self.targets[0]).type)
            known = self._labels(whole)
            if (found := len(self._classes or ())) > spec.classes:
                raise ConfigError(f"data.classes={spec.classes}: {self.path} has {found} different labels")
        train = self._split(whole, self.path, spec, known)
        if self.test_path is not None:
            held = self._read(self.test_path, of_targets)
            if known is not None:
                self._check_spelling(held, self.test_path)
            test = self._split(held, self.test_path, spec, known)
        else:
            first, second = fifth(len(train), f"data.path={self.path}")
            train, test = train.rows(first), train.rows(second)
        train = train.first(self.limit)
        return self._standardized(train, train, spec), self._standardized(test, train, spec)

    def _standardized(self, split: Split, by: Split, spec: DataSpec) -> Split:
        def standard(values: Tensor, by: Tensor) -> Tensor:
            if not values.is_floating_point():
                return values
            return _standard(values, by) if self.standardize else values.float()

        targets = standard(split.targets, by.targets)
        if isinstance(split.inputs, Tensor) and isinstance(by.inputs, Tensor):
            return Split(standard(split.inputs, by.inputs), targets, split.weights)
        assert isinstance(split.inputs, dict) and isinstance(by.inputs, dict)
        inputs = {name: standard(each, by.inputs[name]) for name, each in split.inputs.items()}
        return Split(inputs, targets, split.weights)

    def _split(self, table: Any, path: Path, spec: DataSpec, known: np.ndarray | None) -> Split:
        """Reads columns by the names that they have in the training file. Numbers are float64 until they are
        standardised: float32 keeps 7 digits, and a time in seconds since 1970 has 10.
        """
        parts = {name: self._read_part(table, part, path) for name, part in self._parts.items()}
        inputs = parts if len(parts) > 1 else next(iter(parts.values()))
        if known is not None:
            column = column_of(table, self.targets[0], path)
            strange = np.setdiff1d(column[~are_ignored(column, self.ignored)], known)
            if len(strange):
                row = int(np.flatnonzero(column == strange[0])[0])
                name = str(strange.tolist()[0])
                alike = (repr(each) for each in map(str, known.tolist()) if folded(each) == folded(name))
                near = next((f", but {each}. Write them alike" for each in alike), "")
                raise CorruptDataError(
                    f"{path}: column {self.targets[0]} is {name!r} in row {row} (from 0 on), a class that {self.path} "
                    f"does not have{near}"
                )
            targets = class_numbers(column, known, self.ignored)
        else:
            columns = [numbers_of(table, name, path) for name in self.targets]
            targets = torch.from_numpy(np.stack(columns, axis=1)).reshape(table.num_rows, *spec.target_shape)
        if self.weights is None:
            return Split(inputs, targets)
        weights = numbers_of(table, self.weights, path)
        negative = np.flatnonzero(weights < 0)
        if len(negative):
            raise CorruptDataError(
                f"{path}: column {self.weights} is {weights[negative[0]]:g} in row {negative[0]} (from 0 on); weights "
                "must be 0 or more"
            )
        return Split(inputs, targets, torch.from_numpy(weights).float())

    def _read_part(self, table: Any, part: "_Part", path: Path) -> Tensor:
        """Returns the values of an input: int64, or float64 until they are standardised. Raises as `numbers_of`."""
        if part.how == "text":
            assert self.tokens is not None
            texts = column_of(table, part.columns[0], path).tolist()
            return torch.from_numpy(tokenizer(self.tokens, part.field.shape[0])(texts))
        if part.how == "list":
            what = f"{path}: column {part.columns[0]}"
            told = part.field.shape[0], self.length is not None, what
            values = torch.from_numpy(list_column(table.column(part.columns[0]), *told))
            if not bool((values.abs() <= LARGEST).all()):  # a NaN is none of these
                raise CorruptDataError(f"{what} has a number in a list that float32 cannot hold")
            if part.field.dtype != torch.int64:
                return values.double()
            fractions = (values.long() != values).nonzero().tolist()
            if fractions:
                row, place = fractions[0]
                raise CorruptDataError(
                    f"{what} is {values[row, place]:g} in a list of row {row} (from 0 on), and whole numbers in the "
                    f"first rows of {self.path}. Choose data.integers=false, or write these with a decimal point"
                )
            return values.long()
        read = integers_of if part.field.dtype == torch.int64 else numbers_of
        columns = [read(table, name, path) for name in part.columns]
        return torch.from_numpy(np.stack(columns, axis=1)).reshape(table.num_rows, *part.field.shape)

    # -- columns

    @cached_property
    def _names(self) -> list[str]:
        """The names of the inputs, as the training file has them."""
        assert self.path is not None
        head = self._schema(self.path)
        return inputs_of(head.names, self.inputs, self.targets, self.weights, head.where)

    @cached_property
    def _parts(self) -> dict[str, "_Part"]:
        """The inputs by name, as the types of the training file's columns have them. Raises ConfigError."""
        assert self.path is not None
        whole = self._whole()
        apart = {name: each for name in self._names if (each := self._sequence(name)) is not None}
        if self.tokens is not None and all(each.how != "text" for each in apart.values()):
            raise ConfigError(
                f"data.tokens={self.tokens}: no input of {self.path} is text by its first rows. Name a column of text "
                "in data.inputs, or choose data.tokens=null."
            )
        if whole == self._names:
            return {"integers": _Part(whole, Field((len(whole),), torch.int64))}
        others = [name for name in self._names if name not in whole and name not in apart]
        if NUMBERS in whole or NUMBERS in apart:
            raise ConfigError(f"data.integers: {self.path} has a column of the name {NUMBERS}. Rename it.")
        alone = {name: _Part([name], Field((), torch.int64)) for name in whole} | apart
        found = {name: alone[name] for name in self._names if name in alone}
        return found | ({NUMBERS: _Part(others, Field((len(others),)))} if others else {})

    def _sequence(self, name: str) -> "_Part | None":
        """Returns the input of a column of lists or of text; None: it is another column."""
        head = self._schema_of_train
        kind = head.types.field(name).type
        if is_text(kind) and self.tokens is not None:
            return _Part([name], Field((self.length or LENGTH,), torch.int64), "text")
        if not is_list(kind):
            return None
        whole = self.integers is not False and import_module("pyarrow").types.is_integer(kind.value_type)
        length = self.length or head.lengths.get(name, 0)
        if length == 0:
            raise ConfigError(f"data.inputs: the first list of column {name} of {self.path} is empty. Set data.length.")
        return _Part([name], Field((length,), torch.int64 if whole else torch.float32), "list")

    def _whole(self) -> list[str]:
        """Returns the inputs that are given as int64. Raises ConfigError."""
        if not self.integers:
            return []
        if self.integers is True:
            return [name for name in self._names if self._is_whole(name)]
        for name in self.integers:
            if name not in self._names:
                raise ConfigError(f"data.integers: {name} is no input of {self.path}. Inputs: {', '.join(self._names)}")
            if not self._is_whole(name):
                found = in_words(self._schema_of_train.types.field(name).type)
                raise ConfigError(f"data.integers: column {name} of {self.path} is {found}; must be whole numbers")
        return [name for name in self._names if name in self.integers]

    def _is_whole(self, name: str) -> bool:
        return import_module("pyarrow").types.is_integer(self._schema_of_train.types.field(name).type)

    @cached_property
    def _schema_of_train(self) -> Head:
        assert self.path is not None
        return self._schema(self.path)

    @property
    def as_integers(self) -> dict[str, object]:
        undecided = self.integers is None and all(self._is_whole(name) for name in self._names)
        return {"integers": True} if undecided else {}

    def _labels(self, table: Any) -> np.ndarray:
        """The values of the targets in order: they are the classes."""
        assert self.path is not None
        self._check_spelling(table, self.path)
        found = np.unique(column_of(table, self.targets[0], self.path))
        found = found[~are_ignored(found, self.ignored)]
        if len(found) == 0:
            raise ConfigError(f"task.ignore_index={self.ignored}: is the label of all rows of {self.path}")
        self._classes = class_names(found, self.ignored)
        return found

    def _kind(self, schema: Any) -> Kind:
        """Returns the kind of the targets by their types in `schema`, whose rows may be the first ones of a file."""
        found = [schema.field(name).type for name in self.targets]
        floating = all(str(each) in ("double", "float", "halffloat") for each in found)
        kind: Kind = self.kind or ("numbers" if floating or len(found) > 1 else "labels")
        if kind == "labels" and len(found) > 1:
            raise ConfigError(
                f"data.targets={self.targets}: labels are one column of {self.path}; data.kind=numbers takes several"
            )
        return kind

    def _check_types(self, head: Head, path: Path, kind: Kind) -> None:
        """Raises ConfigError for a column that has to be numbers, and by the head of the file is not."""
        types = import_module("pyarrow").types

        def is_number(name: str) -> bool:
            found = head.types.field(name).type
            tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)  # null: nothing in the head
            return any(test(found) for test in tests)

        def is_input(name: str) -> bool:
            found = head.types.field(name).type
            return is_number(name) or is_list(found) or (self.tokens is not None and is_text(found))

        others = [*self.targets, *([self.weights] if self.weights else [])]
        if path != self.path and self.inputs is None:
            check_like(head.names, self._names, others, f"data.test_path={path}", f"data.path={self.path}")
        inputs = inputs_of(head.names, self.inputs, self.targets, self.weights, head.where)
        if kind == "labels":
            check_label(head.types.field(self.targets[0]), path)
        for name in (*inputs, *(self.targets if kind == "numbers" else []), *([self.weights] if self.weights else [])):
            if is_input(name) if name in inputs else is_number(name):
                continue
            numbers = [each for each in inputs if is_input(each)]
            how = f", or left out: {typed('data.inputs', numbers)}" if name in inputs and numbers else ""
            if name in inputs and is_text(head.types.field(name).type):
                how += ". Write categories as columns of 0 and 1; data.tokens=bytes reads text"
            elif types.is_list(found := head.types.field(name).type) and is_text(found.value_type):
                how += ". Write the numbers of a list without quotes"
            elif types.is_nested(found):
                how += ". data=hugging_face reads nested lists"
            key = "inputs" if name in inputs else "targets" if name in self.targets else "weights"
            raise ConfigError(
                f"data.{key}: column {name} of {path} is {in_words(head.types.field(name).type)}; must be numbers{how}"
            )
        if path != self.path:
            self._check_parts(head, path)

    def _check_parts(self, head: Head, path: Path) -> None:
        """Raises ConfigError for an input that is numbers, lists or text in one file, and another kind in the other."""
        for part in self._parts.values():
            for name in part.columns:
                found = head.types.field(name).type
                is_read_as_text = part.how == "text" and form(path) in ("csv", "tsv")
                how = "list" if is_list(found) else "text" if is_text(found) or is_read_as_text else "columns"
                if how != part.how:
                    raise ConfigError(
                        f"data.test_path={path}: column {name} is {found}, and "
                        f"{self._schema_of_train.types.field(name).type} in data.path={self.path}. Save both files "
                        "with one type."
                    )

    # -- files

    def _schema(self, path: Path) -> Head:
        """Returns the contents that the first MiB of a text tells."""
        head = head_of(path)
        wanted = [*self.targets, *([self.weights] if self.weights else [])]
        chosen(head.names, wanted[: len(self.targets)], "data.targets", head.where)
        chosen(head.names, wanted[len(self.targets) :], "data.weights", head.where)
        return head

    def _read(self, path: Path, of_targets: Any = None) -> Any:
        """The columns that are used. `of_targets`: the type of the targets, where another file says it."""
        head = self._schema(path)
        target, weights = self.targets[0], [self.weights] if self.weights else []
        used = [*dict.fromkeys([*self._names, *self.targets, *weights])]
        if form(path) in ("parquet", "jsonl"):
            if form(path) == "parquet":
                check_fits(path, 8 * len(used) * (head.rows or 0), "data=arrays")
                table = columns_of_parquet(path, used)
            else:
                table = columns_of_json(path, used, head.names if self.inputs is None else None)
        else:
            text = [name for part in self._parts.values() if part.how == "text" for name in part.columns]
            types = dict.fromkeys(text, import_module("pyarrow").string())
            kinds = import_module("pyarrow").types
            if of_targets is not None and not (
                kinds.is_integer(of_targets) and kinds.is_floating(head.types.field(target).type)
            ):
                types[target] = of_targets  # else 2.0 is cast to 2
            table = columns_of_text(path, head.names, used, types)
            check_exact(table, path, head.names)
        if of_targets is not None:
            table = with_type_of(table, target, of_targets, path, self.path)
        if table.num_rows == 0:
            raise ConfigError(f"{path} has no rows")
        if self.kind != "numbers" and head.types.field(target).type != table.schema.field(target).type:
            check_label(table.schema.field(target), path)
        return table

    def _check_spelling(self, table: Any, path: Path) -> None:
        """Raises CorruptDataError for labels of a text file that differ there, such as 01 and 1, and are one value."""
        name, types = self.targets[0], import_module("pyarrow").types
        values = table.column(name)
        if form(path) in ("parquet", "jsonl") or types.is_string(values.type) or types.is_null(values.type):
            return
        arrays = {"value": values, "text": as_written(path, self._schema(path).names, [name]).column(name)}
        pairs = import_module("pyarrow").table(arrays).group_by([*arrays], use_threads=False).aggregate([]).drop_null()
        known: dict[Any, str] = {}
        for value, text in zip(*(pairs[key].to_numpy().tolist() for key in arrays), strict=True):
            former = known.setdefault(value, text)
            if folded(former) != folded(text):
                raise CorruptDataError(
                    f"{path}: column {name} has {former!r} and {text!r}, which are the same {values.type}. Write "
                    "them alike if they are one class, and with a letter if they are two"
                )

    def _check(self) -> None:
        check_there("data.path=houses.csv data.targets=price", self.how_to_get(), self.path, self.test_path)
        if folder_of("pyarrow") is None:
            raise MissingDataError(
                "data=table: pyarrow, which reads tables, is not installed: pip install 'paceline[tables]'"
            )
        for path in (self.path, self.test_path):
            if path is not None and not form(path):
                raise ConfigError(
                    f"{path}: must be {SUFFIXES}. Choose data=arrays for .npz, .npy and .safetensors, data=images for "
                    "a folder of images, data=hugging_face for a saved data set, or data=svmlight."
                )
        if self.tokens is not None:
            check_tokens(self.tokens)

    def described(self) -> Described:
        seen = None if self._classes is None else len(self._classes)
        one = are_one(self.path, self.test_path)
        return Described(tuple(self._names), tuple(self.targets), self._classes, seen, is_tested_on_training=one)

    def how_to_get(self) -> str:
        return "Set data.path to a .csv, .jsonl or .parquet file, and data.targets to the name of a column."

    def found(self) -> str | None:
        paths = self.files()
        return os.pathsep.join(map(str, paths)) if self.path and all(path.exists() for path in paths) else None

    def files(self) -> tuple[Path, ...]:
        tokens = asked(self.tokens, "tokens") if self.tokens not in (None, "bytes") else None
        return tuple(path for path in (self.path, self.test_path, tokens) if path is not None)


@dataclass(frozen=True)
class _Part:
    """One input, of one or several columns."""

    columns: list[str]
    field: Field
    how: Literal["columns", "list", "text"] = "columns"


def _standard(values: Tensor, by: Tensor) -> Tensor:
    """A column that is the same everywhere becomes 0."""
    deviation, constant = by.std(0, correction=0), (by == by[0]).all(0)  # which rounding may give a deviation
    scaled = (values - by.mean(0)) / torch.where(~constant & (deviation > 0), deviation, 1.0)
    return scaled.float()
