"""Contents of a data set, for people and for the record of a run: inputs, samples, classes."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import prod
from typing import Any
from unicodedata import normalize

import torch

from .base import DataSpec, Described
from .items import IGNORED

FEW = 5  # names that are told
LONGEST = 40  # characters of a name
_INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+")  # what pandas and Arrow call the index of a table


@dataclass(frozen=True)
class Contents:
    """`inputs`: each with its dtype and shape. Sizes count samples; None: they are counted when they are read.

    `targets` has the names of what is learnt, `class_names` the first few classes; both may be unknown. `orders`: of
    the names of all columns and of all classes, a digest in their order and one of the sorted names.
    """

    inputs: dict[str, str]
    columns: list[str]  # of an input that has several, the first few
    train: int | None
    test: int | None
    targets: list[str]
    classes: int  # 0: targets are numbers
    class_names: list[str]
    each: list[int]  # the shape of a sample's targets
    left_out: list[str]  # files that are not read, the first few
    held_from: str  # the split whose fifth is for test, where it was named for both
    orders: dict[str, list[str]]

    def in_words(self) -> str:
        """Returns one line."""
        left_out = [f"not read: {', '.join(self.left_out)}"] if self.left_out else []
        return "; ".join([self._inputs(), self._samples(), self._targets(), *left_out])

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "in_words": self.in_words()}

    def _inputs(self) -> str:
        told = [f"{name} {what}" for name, what in self.inputs.items()]
        columns = f" ({', '.join(self.columns)})" if self.columns else ""
        return f"{some(told, len(told))}{columns}"

    def _samples(self) -> str:
        if self.train is None:
            return "samples are counted when they are read"
        test = "test samples are counted when they are read" if self.test is None else f"{self.test:,} to test"
        held = f" (a fifth of the split {self.held_from})" if self.held_from else ""
        return f"{_count(self.train, 'sample')} to train, {test}{held}"

    def _targets(self) -> str:
        of = f"{', '.join(self.targets)}: " if self.targets else ""
        each = f" for each of {self.each}" if self.each else ""
        if not self.classes:
            return f"{of}{'a number' if not self.each else f'numbers {self.each}'}"
        names = f" ({some(self.class_names, self.classes)})" if self.class_names else ""
        return f"{of}{_count(self.classes, 'class')}{names}{each}"


def contents(spec: DataSpec, told: Described, train: int | None = None, test: int | None = None) -> Contents:
    """`train` and `test`: sizes of the splits, where they have been loaded."""
    columns: list[str] = []
    if spec.features is not None:
        inputs = {f"{spec.features:,} sparse features,": f"at most {spec.input_shape[-1]:,} a sample"}
    elif spec.inputs is None and len(told.inputs) != 1:
        inputs, columns = {"inputs": _what(spec.input_dtype, spec.input_shape)}, list(told.inputs)
    else:
        names = told.inputs if spec.inputs is None else spec.fields
        columns = [name for name in told.inputs if spec.inputs is not None and name not in spec.fields]
        inputs = {safe(str(name)): _what(f.dtype, f.shape) for name, f in zip(names, spec.fields.values(), strict=True)}
    return Contents(
        inputs,
        told_first(columns),
        spec.train_size if train is None else train,
        spec.test_size if test is None else test,
        told_first(told.targets),
        spec.classes if told.classes is None or not spec.classes else len(told.classes),
        [] if told.classes is None else told_first(told.classes)[:FEW],
        list(spec.target_shape),
        told_first(told.left_out),
        safe(told.held_from) if told.held_from else "",
        {key: digests(names) for key, names in (("class_names", told.classes or ()), ("columns", columns)) if names},
    )


def digests(names: Sequence[str]) -> list[str]:
    """Returns SHA-256 of the names in their order, and of the sorted names."""
    return [sha256(repr(list(each)).encode(errors="surrogatepass")).hexdigest() for each in (names, sorted(names))]


def notes_on(spec: DataSpec, told: Described) -> list[str]:
    """Returns what somebody who knows the data would ask about, one sentence each."""
    notes = [
        f"data.inputs: the column {name!r} looks like the index of a table, and is an input. data.inputs=[...] names "
        "those that are measured"
        for name in told.inputs
        if _INDEX.fullmatch(name)
    ]
    if told.is_tested_on_training:
        notes.append(
            "data.test_path: is data.path, so that the run is evaluated with samples that it trains on. null leaves a "
            "fifth of them for test"
        )
    if spec.targets == "labels" and str(IGNORED) in (told.classes or ()):
        notes.append(
            f"data.targets: {IGNORED} is one of the classes, and is learnt like any other. If it marks labels that do "
            f"not count, choose task.ignore_index={IGNORED} of task=weighted_labels or task=model"
        )
    labels = (spec.train_size or 0) * prod(spec.target_shape)
    if spec.targets == "labels" and told.seen == 1:
        name = f", {safe(told.classes[0])}" if told.classes else ""
        notes.append(f"data.targets: all samples are of one class{name}, so that there is nothing to learn")
    elif spec.targets == "labels" and (alike := _alike(told.classes or ())):
        notes.append(
            f"data.targets: the classes {alike[0]!r} and {alike[1]!r} differ by case, white space or the form "
            "of Unicode alone. Rename one if they are the same"
        )
    elif spec.targets == "labels" and told.seen is not None and 0 < labels < 2 * told.seen:
        notes.append(
            f"data.targets: {told.seen:,} classes in {labels:,} training labels are fewer than two labels each. "
            "data.kind=numbers makes a regression of numbers"
        )
    return notes


def _alike(classes: Sequence[str]) -> tuple[str, str] | None:
    """Returns the first two classes whose names differ by case, white space or the form of Unicode alone."""
    known: dict[str, str] = {}
    for name in classes:
        former = known.setdefault(folded(name), name)
        if former != name:
            return former, name
    return None


def folded(name: str) -> str:
    """Returns a name in one form of Unicode, without case and without white space around it or repeated in it."""
    return " ".join(normalize("NFKC", name).split()).casefold()


def told_first(names: Sequence[str]) -> list[str]:
    """Returns the first few, and how many more there are."""
    found = [safe(name) for name in names[:FEW]]
    return found if len(names) <= FEW else [*found, f"and {len(names) - FEW:,} more"]


def safe(name: str) -> str:
    """Names come from files: nothing in them may reach a terminal as a command."""
    shown = name if name.isprintable() and name and name == name.strip() else ascii(name)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 3]}..."


def some(told: list[str], count: int) -> str:
    return ", ".join(told[:FEW] if count <= FEW else [*told[:FEW], f"and {count - FEW:,} more"])


def _what(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _count(number: int, thing: str) -> str:
    plural = f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{number:,} {thing if number == 1 else plural}"
