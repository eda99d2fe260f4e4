"""Arrays from files of your own: `.npz`, safetensors, or a folder of `.npy`. They may be larger than memory."""

import math
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, MinLen

from ...conf.errors import ConfigError
from ...conf.grammar import typed
from ..base import Data, DataSpec, Described, Field
from ..columns import Columns, FileColumn, given_dtype
from .files import are_shown, asked
from .mapped import Array, arrays_of
from .parts import (
    Kind,
    StoredValues,
    are_one,
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


class Arrays(Data):
    """Arrays [n, ...] of one length: `inputs` (null: all that are nothing else), `targets`, and maybe `weights`.

    One input is a model's only argument; several are keyword arguments by their names. Floating numbers become
    float32, bytes (uint8) float32 from 0 to 1, other whole numbers int64. `kind`: whether targets are labels or
    numbers; null: whole numbers are labels. `classes`: null counts them. `range`: the smallest and the largest value of
    a lone input of floating numbers (see DataSpec); that of bytes is 0 to 1. `floats`: all whole numbers of inputs
    become float32, too. A fixed fifth is for test, unless there is a `test_path`.
    """

    def __init__(
        self,
        path: str | None = None,
        test_path: str | None = None,
        inputs: str | Annotated[list[str], MinLen(1)] | None = None,
        targets: str = "targets",
        weights: str | None = None,
        kind: Kind | None = None,
        classes: Annotated[int, Ge(2)] | None = None,
        range: tuple[float, float] | None = None,
        floats: bool = False,
        limit: Annotated[int, Ge(1)] | None = None,
        loader_workers: Annotated[int, Ge(0)] = 0,
    ) -> None:
        self.path, self.test_path = asked(path), asked(test_path, "test_path")
        self.inputs, self.targets, self.weights = inputs, targets, weights
        self.kind: Kind | None = kind
        if range is not None and not range[0] < range[1]:
            raise ConfigError(f"data.range={list(range)}: the first must be below the second")
        self.range, self.floats = range, floats
        self.classes, self.limit, self.loader_workers = classes, limit, loader_workers
        self._seen: int | None = None  # different labels, once they are counted

    @cached_property
    def spec(self) -> DataSpec:  # pyright: ignore[reportIncompatibleMethodOverride]
        check_there("data.path=samples.npz data.targets=labels", self.how_to_get(), self.path, self.test_path)
        assert self.path is not None
        arrays = self._train
        size = _length(self.path, arrays)
        test = None if self.test_path is None else self._checked(self.test_path)
        target = arrays[self.targets]
        shape, dtype = target.shape[1:], _dtype(target)
        kind = kind_of(dtype, shape, self.kind)
        where = f"the targets {self.targets!r} of {self.path}"
        classes = 0
        if kind == "labels" and self.classes is None:
            counted = count_classes(target.read(), math.prod(target.shape), where, self.ignored)
            classes, self._seen = counted.classes, counted.seen
        elif kind == "labels":
            classes = self.classes or 0
        names = self._names
        fields = {name: Field(arrays[name].shape[1:], self._given(arrays[name])) for name in names}
        train, held = sizes(size, test, self.limit, f"data.path={self.path}")
        lone = fields[names[0]]
        return DataSpec(
            input_shape=lone.shape,
            input_dtype=lone.dtype,
            target_shape=shape,
            classes=classes,
            train_size=train,
            test_size=held,
            target_dtype=torch.float32 if kind == "numbers" else torch.int64,
            inputs=None if len(names) == 1 else fields,
            weights=self.weights is not None,
            range=(0.0, 1.0) if _dtype(arrays[names[0]]) == torch.uint8 else self.range,
            ignored=self.ignored,
        )

    def load(self) -> tuple[Columns, Columns]:
        spec = self.spec
        assert self.path is not None
        whole = self._columns(self.path, spec, "train")
        if self.test_path is not None:
            return whole.first(self.limit), self._columns(self.test_path, spec, "test")
        train, test = fifth(len(whole), f"data.path={self.path}")
        return whole.rows(train).first(self.limit), self._columns(self.path, spec, "test").rows(test)

    def _columns(self, path: Path, spec: DataSpec, split: str) -> Columns:
        """Reads the arrays by the names that they have in the training file."""
        arrays = self._used(path, self._names)
        columns = {name: FileColumn(name, array.read()) for name, array in arrays.items()}
        inputs = {key: columns[name] for key, name in zip(spec.fields, self._names, strict=True)}
        weights = None if self.weights is None else columns[self.weights]
        return Columns(inputs, columns[self.targets], weights, spec, f"{path}, {split} split", _length(path, arrays))

    def _checked(self, path: Path) -> int:
        """Returns the length of the test file's arrays. Raises ConfigError for one that the training file has
        otherwise.
        """
        arrays = self._used(path, self._names)
        for name in (*self._names, self.targets):
            ours, theirs = self._train[name], arrays[name]
            check_stored(
                name,
                StoredValues(f"data.path={self.path}", ours.shape[1:], _dtype(ours), f"{ours.dtype}"),
                StoredValues(f"data.test_path={path}", theirs.shape[1:], _dtype(theirs), f"{theirs.dtype}"),
                self._given(ours) if name in self._names else None,
            )
        return _length(path, arrays)

    def _given(self, array: Array) -> torch.dtype:
        return given_dtype(_dtype(array), self.floats)

    @cached_property
    def _train(self) -> dict[str, Array]:
        """The arrays of the training file that are used, by name."""
        assert self.path is not None
        return self._used(self.path, None)

    @property
    def _names(self) -> list[str]:
        """The names of the inputs."""
        assert self.path is not None
        return self._inputs(self._train, self.path)

    def _inputs(self, found: Iterable[str], path: Path) -> list[str]:
        return inputs_of([*found], self.inputs, [self.targets], self.weights, str(path), "arrays")

    def _used(self, path: Path, names: Sequence[str] | None) -> dict[str, Array]:
        """The inputs, targets and weights of a file. `names`: of the training file's inputs; None: this is that file.

        Raises ConfigError.
        """
        found = arrays_of(path)
        others = [name for name in (self.targets, self.weights) if name is not None]
        chosen([*found], others[:1], "data.targets", str(path))
        chosen([*found], others[1:], "data.weights", str(path))
        if names is not None and self.inputs is None:
            check_like([*found], names, others, f"data.test_path={path}", f"data.path={self.path}", "arrays")
        inputs = self._inputs(found, path) if names is None or self.inputs is not None else names
        arrays = {name: found[name] for name in (*inputs, *others)}
        for name, array in arrays.items():
            if not array.is_numbers:
                left = [each for each in inputs if found[each].is_numbers]
                how = f", or left out: {typed('data.inputs', left)}" if name in inputs and left else ""
                raise ConfigError(
                    f"{path}: {name} is an array of {array.dtype}; must be of numbers (nothing is unpickled){how}"
                )
        if self.weights is not None and _dtype(found[self.weights]) not in (torch.bool, torch.float32, torch.float64):
            raise ConfigError(
                f"data.weights={self.weights}: in {path} is of {found[self.weights].dtype}; must be floats or a mask"
            )
        return arrays

    def described(self) -> Described:
        one = are_one(self.path, self.test_path)
        return Described(tuple(self._names), (self.targets,), None, self._seen, is_tested_on_training=one)

    def how_to_get(self) -> str:
        return "Set data.path to a .npz or .safetensors file, or to a folder of .npy files, and data.targets to a name."

    def found(self) -> str | None:
        paths = [path for path in (self.path, self.test_path) if path is not None]
        return os.pathsep.join(map(str, paths)) if self.path and all(path.exists() for path in paths) else None

    def files(self) -> tuple[Path, ...]:
        paths = [path for path in (self.path, self.test_path) if path is not None]
        return tuple(file for path in paths for file in (are_shown(path.glob("*.npy")) if path.is_dir() else [path]))


def _dtype(array: Array) -> torch.dtype:
    """The dtype of the tensors that `array` is read as."""
    if array.bfloat16:
        return torch.bfloat16
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        return torch.int64
    return torch.from_numpy(np.zeros(1, array.dtype.newbyteorder("="))).dtype


def _length(path: Path, arrays: dict[str, Array]) -> int:
    """Raises ConfigError where they are not of one length, or empty."""
    if single := [name for name, array in arrays.items() if not array.shape]:
        raise ConfigError(f"{path} has a single number in {', '.join(single)}; the first axis must be that of samples")
    lengths = {name: array.shape[0] for name, array in arrays.items()}
    if len({*lengths.values()}) > 1:
        told = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise ConfigError(f"{path} has arrays of several lengths ({told}); the first axis must be that of samples")
    if 0 in lengths.values():
        raise ConfigError(f"{path} has no samples: {', '.join(lengths)} are empty")
    return next(iter(lengths.values()))
