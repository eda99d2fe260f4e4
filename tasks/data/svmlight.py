"""Sparse samples from a file of your own in the svmlight (libsvm) format: `label feature:value feature:value ...`."""

import bz2
import gzip
import os
import zlib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from ...batches import lone
from ...conf.errors import ConfigError
from ..base import Data, DataSpec, Described, Split
from ..errors import CorruptDataError
from .files import asked, check_fits, check_readable, open_data
from .parts import are_ignored, are_one, check_said, class_names, class_numbers
from .sparse import pairs_of

_PACKED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
CHUNK = 2**20  # bytes that are unpacked at a time
SPLIT_SEED = 0  # a constant: runs with different seeds share one test set


class SVMLight(Data):
    """The file at `path`, packed by gzip or bzip2 where its name says so; a fixed fifth of it is for test, unless
    there is a file at `test_path`.

    What a model must know beforehand is said, not looked up: `features` (more than there are does no harm), and the
    most `nonzeros` and `classes` that there are. Labels are numbered in the order of their values in the training
    file. `zero_based`: the first feature is 0, not 1. Loading raises ConfigError for a file that has more of
    anything than was said, with what it has.
    """

    preload = ("sklearn.datasets",)

    def __init__(
        self,
        path: str | None = None,
        test_path: str | None = None,
        features: Annotated[int, Ge(1)] = 200_000,
        nonzeros: Annotated[int, Ge(1)] = 500,
        classes: Annotated[int, Ge(2)] = 2,
        zero_based: bool = False,
    ) -> None:
        self.path, self.test_path = asked(path), asked(test_path, "test_path")
        self.features, self.nonzeros, self.classes, self.zero_based = features, nonzeros, classes, zero_based
        self._classes: tuple[str, ...] | None = None  # once they are read

    @property
    def spec(self) -> DataSpec:
        shape, dtype, ignored = (2, self.nonzeros), torch.float64, self.ignored
        return DataSpec(shape, dtype, (), self.classes, None, None, features=self.features, ignored=ignored)

    def check_files(self) -> None:
        check_said(self.path, "data.path=samples.svm data.features=1000 data.nonzeros=100", self.how_to_get())
        check_readable(self.how_to_get(), *self.files())

    def load(self) -> tuple[Split, Split]:
        self.check_files()
        assert self.path is not None
        matrix, labels = self._read(self.path)
        known = np.unique(labels[~are_ignored(labels, self.ignored)])
        names = class_names(known, self.ignored, lambda label: f"{label:g}")
        if not 2 <= len(names) <= self.classes:
            raise ConfigError(f"data.classes={self.classes}: {self.path} has {len(names)} different labels.")
        self._classes = names
        whole = self._split(self.path, matrix, labels, known)
        if self.test_path is not None:
            return whole, self._split(self.test_path, *self._read(self.test_path), known)
        order = torch.from_numpy(np.random.default_rng(SPLIT_SEED).permutation(len(whole)))
        test, train = order[: len(order) // 5], order[len(order) // 5 :]
        if len(test) == 0:
            raise ConfigError(f"data.path={self.path}: of {len(whole)} samples, a fifth for test is none.")
        return _some(whole, train), _some(whole, test)

    def described(self) -> Described:
        return Described(classes=self._classes, is_tested_on_training=are_one(self.path, self.test_path))

    def how_to_get(self) -> str:
        return (
            "Set data.path to a file in the svmlight (libsvm) format, and data.features, data.nonzeros and "
            "data.classes to what it has."
        )

    def found(self) -> str | None:
        paths = self.files()
        return os.pathsep.join(map(str, paths)) if self.path and all(path.is_file() for path in paths) else None

    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.path, self.test_path) if path is not None)

    def _read(self, path: Path) -> tuple[Any, np.ndarray]:
        """A scipy CSR matrix [n, features], and labels [n]."""
        from sklearn.datasets import load_svmlight_file  # a second to import: only where it is needed

        packed = _PACKED.get(path.suffix.lower())
        with open_data(path) as file:
            try:
                unpacked = packed(file) if packed else file
                _check_fits(path, unpacked)
                based: Any = self.zero_based  # sklearn's own annotation lacks bool
                matrix, labels = load_svmlight_file(unpacked, zero_based=based)
            except ConfigError:
                raise
            except (ValueError, OSError, EOFError, OverflowError, zlib.error) as error:
                raise CorruptDataError(f"{path} cannot be read in the svmlight format: {error}") from error
        self._check_finite(path, matrix, labels)
        if matrix.shape[1] > self.features:
            raise ConfigError(f"data.features={self.features}: {path} has {matrix.shape[1]} features.")
        return matrix, labels

    def _check_finite(self, path: Path, matrix: Any, labels: np.ndarray) -> None:
        """Raises CorruptDataError for a label or a value that is NaN, infinite, or beyond float64."""
        strange = np.flatnonzero(~np.isfinite(labels))
        if len(strange):
            raise CorruptDataError(
                f"{path}: the label is {_named(labels[strange[0]].item())} in row {strange[0]} (from 0 on)"
            )
        strange = np.flatnonzero(~np.isfinite(matrix.data))
        if len(strange):
            row = int(np.searchsorted(matrix.indptr, strange[0], side="right")) - 1
            feature = matrix.indices[strange[0]] + (not self.zero_based)
            raise CorruptDataError(
                f"{path}: feature {feature} is {_named(matrix.data[strange[0]].item())} in row {row} (from 0 on); must "
                "be finite"
            )

    def _split(self, path: Path, matrix: Any, labels: np.ndarray, known: np.ndarray) -> Split:
        strange = np.setdiff1d(labels[~are_ignored(labels, self.ignored)], known)
        if len(strange) > 0:
            raise CorruptDataError(f"{path} has a label {strange[0]:g} that {self.path} has not.")
        counts = np.diff(matrix.indptr)
        if counts.max(initial=0) > self.nonzeros:
            raise ConfigError(f"data.nonzeros={self.nonzeros}: a sample of {path} has {counts.max()} non-zeros.")
        place = np.arange(self.nonzeros)
        there = place < counts[:, None]  # [n, nonzeros]
        features = np.zeros(there.shape)
        features[there] = matrix.indices
        features = np.where(there, features, features[:, :1])  # the first again
        values = np.zeros(there.shape)
        values[there] = matrix.data
        return Split(pairs_of(features, values), class_numbers(labels, known, self.ignored))


def _named(value: float) -> str:
    return "NaN" if np.isnan(value) else "infinite"


def _check_fits(path: Path, unpacked: Any) -> None:
    """Reads the text once without keeping it. Raises ConfigError where its lines or its numbers exceed memory.

    A line takes 16 bytes, for its label and its beginning, and so does a feature with its value.
    """
    size = lines = features = 0
    while chunk := unpacked.read(CHUNK):
        size += len(chunk)
        lines += chunk.count(b"\n")
        features += chunk.count(b":")
        check_fits(path, max(size, 16 * (lines + features)), "a file of fewer samples")
    unpacked.seek(0)


def _some(whole: Split, index: Tensor) -> Split:
    taken = whole.take(index)
    return Split(lone(taken.inputs), taken.targets)
