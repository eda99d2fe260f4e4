"""A data set of Hugging Face's `datasets` that was saved on this disk (`save_to_disk`). It may be larger than memory.

pip install 'paceline[datasets]'. Nothing is downloaded, and no code of a data set is run.
"""

import json
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, MinLen
from torch import Tensor

from ...conf.errors import ConfigError
from ...conf.grammar import typed
from ..base import Data, DataSpec, Described, Field
from ..columns import Columns, FileColumn, given_dtype
from ..errors import CorruptDataError, MissingDataError, SampleError
from .files import asked, folder_of, open_data
from .mapped import signed
from .parts import (
    Kind,
    StoredValues,
    check_like,
    check_stored,
    check_there,
    chosen,
    count_classes,
    fifth,
    inputs_of,
    kind_of,
    sizes,
)

_MOST_STATE = 1 << 24  # bytes of a state.json
_NUMBERS = {
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64"),
}


class HuggingFace(Data):
    """Columns of numbers, or of lists of them of one length: `inputs`, `targets`, and maybe `weights` (a mask).

    One input is a model's only argument; several are keyword arguments by their names. Whole numbers are int64, with
    `floats` float32. Of a DatasetDict the splits `train` and `test` are taken; of a Dataset a fixed fifth is for test.
    """

    preload = ("datasets",)
    reader = "datasets"

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
        floats: bool = False,
        limit: Annotated[int, Ge(1)] | None = None,
        loader_workers: Annotated[int, Ge(0)] = 0,
    ) -> None:
        self.path = asked(path)
        self.inputs, self.targets, self.weights, self.train, self.test = inputs, targets, weights, train, test
        self.kind: Kind | None = kind
        self.classes, self.floats, self.limit, self.loader_workers = classes, floats, limit, loader_workers
        self._seen: int | None = None  # different labels, once they are counted

    @cached_property
    def _opened(self) -> tuple[Any, Any]:
        """The training and the test split; of a Dataset it is the same, and there is no other."""
        check_there("data.path=saved", self.how_to_get(), self.path)
        if folder_of("datasets") is None:
            raise MissingDataError("data=hugging_face: datasets is not installed: pip install 'paceline[datasets]'")
        assert self.path is not None
        library = import_module("datasets")
        _check_folder(self.path)
        try:
            found = library.load_from_disk(str(self.path))
        except Exception as error:  # of whatever kind: a file of Arrow's, JSON, a key that is not there
            raise CorruptDataError(
                f"{self.path} is no data set that was saved: {' '.join(str(error).split())[:300]}"
            ) from error
        if not isinstance(found, library.DatasetDict):
            for key, name in (("train", self.train), ("test", self.test)):
                if name != key:
                    raise ConfigError(
                        f"data.{key}={name}: {self.path} is a Dataset, which has no splits. Leave data.{key} out, or "
                        "save a DatasetDict"
                    )
            return found, found
        for key, name in (("train", self.train), ("test", self.test)):
            chosen([*found], name, f"data.{key}", str(self.path))
        return found[self.train], found[self.test]

    @cached_property
    def spec(self) -> DataSpec:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Reads the first sample of each split, and to count classes the column of targets."""
        train, test = self._opened
        names = self._names
        for data, split in ((train, "train"), (test, "test")):
            if len(data) == 0:
                raise ConfigError(f"{self.path} has no samples in its {split} split")
        first = torch.tensor([0])
        read = {name: self._column(train, name).read(first) for name in (*names, self.targets)}
        fields = {
            name: Field(tuple(read[name].shape[1:]), given_dtype(read[name].dtype, self.floats)) for name in names
        }
        target = read[self.targets]
        kind = kind_of(target.dtype, tuple(target.shape[1:]), self.kind)
        if train is not test:
            self._check_alike(read)
        among = None if train is test else len(test)
        instead = "Save a DatasetDict with a split for test"
        size, held = sizes(len(train), among, self.limit, f"data.path={self.path}", instead)
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
            ignored=self.ignored,
        )

    def _check_alike(self, read: dict[str, Tensor]) -> None:
        """Holds the test split's columns to those of the training split. Raises ConfigError.

        A ClassLabel is a number, and both splits must mean the same class by it.

        Args:
            read: the first sample of the training split.
        """
        train, test = self._opened
        for name, ours in read.items():
            of_train, of_test = (_classes_of(data.features[name]) for data in (train, test))
            if of_train and of_test and of_train != of_test:
                raise ConfigError(
                    f"data.test={self.test}: {name} numbers the classes {', '.join(of_test[:8])}, and the split "
                    f"{self.train} numbers {', '.join(of_train[:8])}. Cast both splits to one ClassLabel"
                )
            theirs = self._column(test, name).read(torch.tensor([0]))
            check_stored(
                name,
                StoredValues(f"the split {self.train}", tuple(ours.shape[1:]), ours.dtype, _said(train.features[name])),
                StoredValues(
                    f"data.test={self.test}", tuple(theirs.shape[1:]), theirs.dtype, _said(test.features[name])
                ),
                given_dtype(ours.dtype, self.floats) if name in self._names else None,
            )

    def _count(self, train: Any, first: Tensor) -> int:
        told = _classes_of(train.features[self.targets])
        if told:
            return max(len(told), 2)
        column = self._column(train, self.targets).read
        where = f"the targets {self.targets!r} of {self.path}"
        counted = count_classes(
            lambda rows: column(torch.arange(len(train))), len(train) * first.numel(), where, self.ignored
        )
        self._seen = counted.seen
        return counted.classes

    def load(self) -> tuple[Columns, Columns]:
        spec, (train, test) = self.spec, self._opened
        first, second = (self._columns(data, spec, split) for data, split in ((train, "train"), (test, "test")))
        if train is not test:
            return first.first(self.limit), second
        own, held = fifth(len(train), f"data.path={self.path}")
        return first.rows(own).first(self.limit), second.rows(held)

    def _columns(self, data: Any, spec: DataSpec, split: str) -> Columns:
        inputs = {key: self._column(data, name) for key, name in zip(spec.fields, self._names, strict=True)}
        weights = None if self.weights is None else self._column(data, self.weights)
        told = self._column(data, self.targets), weights, spec, f"{self.path}, {split} split"
        return Columns(inputs, *told, len(data))

    def _column(self, data: Any, name: str) -> FileColumn:
        if not _is_numbers(data.features[name]):
            raise ConfigError(
                f"{self.path}: column {name} is {_in_words(data.features[name])}; must be numbers, or lists of one "
                f"length (map them to such before save_to_disk){self._left(data, name)}"
            )
        return FileColumn(name, _ArrowColumn(data.select_columns([name]), name, f"{self.path}"))

    def _left(self, data: Any, name: str) -> str:
        """The inputs without those that are no numbers, where `name` is an input."""
        left = [each for each in self._names if _is_numbers(data.features[each])]
        return f", or left out: {typed('data.inputs', left)}" if name in self._names and left else ""

    @cached_property
    def _names(self) -> list[str]:
        """The names of the inputs, as the training split has them; the test split's are held to them."""
        train, test = self._opened
        others = [name for name in (self.targets, self.weights) if name is not None]

        def of(data: Any, where: str) -> list[str]:
            chosen(data.column_names, others[:1], "data.targets", where)
            chosen(data.column_names, others[1:], "data.weights", where)
            return inputs_of(data.column_names, self.inputs, [self.targets], self.weights, where)

        if train is test:
            return of(train, str(self.path))
        of_train, of_test = (f"the split {split} of {self.path}" for split in (self.train, self.test))
        names = of(train, of_train)
        if self.inputs is None:
            check_like(test.column_names, names, others, of_test, of_train)
        of(test, of_test)
        return names

    def described(self) -> Described:
        names = _classes_of(self._opened[0].features[self.targets]) if self.spec.classes else None
        held = self.train if self.train == self.test else ""
        return Described(
            tuple(self._names), (self.targets,), tuple(names) if names else None, self._seen, held_from=held
        )

    def how_to_get(self) -> str:
        return "Set data.path to the folder of a data set that was saved by save_to_disk of Hugging Face's datasets."

    def found(self) -> str | None:
        return None if self.path is None or not self.path.exists() else str(self.path)

    def files(self) -> tuple[Path, ...]:
        return () if self.path is None else tuple(sorted(self.path.rglob("*.arrow")))


class _ArrowColumn:
    def __init__(self, data: Any, name: str, where: str) -> None:
        self._data, self._name, self._where = data.with_format("arrow"), name, where

    def __call__(self, rows: Tensor) -> Tensor:
        """[k] -> [k, ...]: int64, float32, float64 or bool. Raises SampleError for an empty cell or ragged lists."""
        if len(rows) == 0:
            return self(torch.tensor([0]))[:0]
        values, shape = self._data[rows.tolist()].column(self._name).combine_chunks(), [len(rows)]
        types, whole = import_module("pyarrow").types, values
        while True:
            values = getattr(values, "storage", values)  # of an array of several dimensions
            if values.null_count:
                self._refuse_empty(whole, rows)
            if not types.is_nested(values.type):
                break
            lengths = {*import_module("pyarrow.compute").list_value_length(values).to_pylist()}
            if len(lengths) > 1:
                told = ", ".join(map(str, sorted(lengths)[:3]))
                raise SampleError(
                    f"{self._where}: column {self._name} has lists of {told} values in one batch; must be numbers, or "
                    "lists of one length (map them to such before save_to_disk)"
                )
            shape.append(lengths.pop())
            values = values.flatten()
        plain = values.to_numpy(zero_copy_only=False).copy()
        found = torch.from_numpy(signed(plain, f"{self._where}: column {self._name}")).reshape(shape)
        if found.dtype == torch.bool:
            return found
        return found.to(torch.promote_types(found.dtype, torch.float32) if found.is_floating_point() else torch.int64)

    def _refuse_empty(self, values: Any, rows: Tensor) -> None:
        row = next((row for row, value in zip(rows.tolist(), values.to_pylist(), strict=True) if _is_empty(value)), 0)
        raise SampleError(f"{self._where}: column {self._name} has nothing in sample {row}")


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_is_empty, value)))


def _is_numbers(feature: Any) -> bool:
    """Returns True for a column of numbers, of true and false, or of lists of them.

    All else is refused before it is read: datasets opens the file that an image, a sound or a video names.
    """
    kind = type(feature).__name__
    if kind in ("List", "LargeList", "Sequence"):
        return _is_numbers(feature.feature)
    if kind == "ClassLabel":
        return True
    if kind in ("Value", "Array2D", "Array3D", "Array4D", "Array5D"):
        return str(feature.dtype) in _NUMBERS
    return isinstance(feature, list) and len(feature) == 1 and _is_numbers(feature[0])


def _innermost(feature: Any) -> Any:
    """Returns the feature of the values in a feature of numbers or of lists of them."""
    if isinstance(feature, list):
        return _innermost(feature[0])
    return _innermost(feature.feature) if hasattr(feature, "feature") else feature


def _classes_of(feature: Any) -> list[str] | None:
    """Returns the names of the classes of a ClassLabel, or of lists of it, and None for other features."""
    return getattr(_innermost(feature), "names", None)


def _said(feature: Any) -> str:
    """Returns the dtype of a feature's values in the words of `datasets`."""
    found = _innermost(feature)
    return "ClassLabel" if type(found).__name__ == "ClassLabel" else f"{found.dtype}"


def _in_words(feature: Any) -> str:
    kind = type(feature).__name__
    return f"{feature.dtype}" if kind == "Value" else f"a {kind}"


def _check_folder(path: Path) -> None:
    """Looks at all that datasets will read: regular files of this folder alone, with whole columns in them.

    Damaged offsets of a mapped column would end the process when a row is read. Raises ConfigError for what is no
    regular file, and CorruptDataError.
    """
    arrow = import_module("pyarrow")
    for file in sorted(path.rglob("*")):  # which does not look into linked folders
        if file.is_dir():
            if file.is_symlink():
                raise ConfigError(f"{file}: is a link to a folder. Move that folder to its place.")
            continue
        with open_data(file):
            pass
        if file.name == "state.json":
            _check_state(file)
        if file.suffix == ".arrow":
            try:
                with arrow.memory_map(str(file)) as opened:
                    table = arrow.ipc.open_stream(opened).read_all()
                    table.validate()
                    for column in table.columns:
                        if not _is_text(arrow, column.type):
                            column.validate(full=True)
            except (arrow.ArrowException, OSError, ValueError) as error:
                raise CorruptDataError(f"{file} is damaged: {' '.join(str(error).split())[:300]}") from error


def _check_state(file: Path) -> None:
    """Raises CorruptDataError where it names files outside of its folder, and ConfigError where it names none.

    `datasets` saves a data set without samples so, and cannot read it.
    """
    try:
        with open_data(file) as opened:
            names = [each["filename"] for each in json.loads(opened.read(_MOST_STATE))["_data_files"]]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptDataError(f"{file} is no state of a saved data set: {error}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise CorruptDataError(f"{file} names {name!r}; must be a file beside it")
    if not names:
        raise ConfigError(f"{file.parent} has no samples. Save a data set and splits that have samples.")


def _is_text(arrow: Any, kind: Any) -> bool:
    """Returns True if it holds text or bytes, which nobody reads and only a full pass could check."""
    if isinstance(kind, arrow.BaseExtensionType):  # such as datasets.Array2D
        return _is_text(arrow, kind.storage_type)
    if arrow.types.is_nested(kind):
        return any(_is_text(arrow, kind.field(i).type) for i in range(kind.num_fields))
    return not arrow.types.is_primitive(kind) and not arrow.types.is_null(kind)
