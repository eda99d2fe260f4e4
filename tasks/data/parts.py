"""Shared by all choices of a user's own files: splitting off a part for test, and the words for errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...conf.errors import ConfigError
from ...conf.grammar import typed
from ..errors import MissingDataError, SampleError
from ..items import converted, label_in_words
from .files import is_there

SPLIT_SEED = 0  # a constant: runs with different seeds share one test set
TEST = 5  # every so many samples, one is for test
MOST_COUNTED = 1 << 26  # labels that are looked at to count the classes, where nobody says how many there are
MOST_SORTED = 1 << 20
MOST_LABELS = 1 << 20  # where there are fewer targets than the largest label says classes
Kind = Literal["labels", "numbers"]


def fifth(size: int, where: str) -> tuple[Tensor, Tensor]:
    """The numbers of a random four fifths for training and of a fifth for test, the same in each run.

    Raises ConfigError where a fifth is none.
    """
    _check_fifth(size, where)
    order = torch.from_numpy(np.random.default_rng(SPLIT_SEED).permutation(size))
    test = size // TEST
    return order[test:], order[:test]  # not in the order of the file: the first so many shall be of all kinds


def _check_fifth(size: int, where: str, instead: str = "Choose data.test_path=FILE, a test set") -> None:
    if size < TEST:
        raise ConfigError(f"{where}: of {size} samples, a fifth for test is none. {instead}.")


def sizes(size: int, test: int | None, limit: int | None, where: str = "data", *instead: str) -> tuple[int, int]:
    """Returns the sizes of the training and the test split of `size` samples, and maybe `test` samples beside them.

    Raises ConfigError where a fifth for test is none, which says `instead` how to give a test set.
    """
    if test is None:
        _check_fifth(size, where, *instead)
    train, held = (size, test) if test is not None else (size - size // TEST, size // TEST)
    return (train if limit is None else min(train, limit)), held


def chosen(names: Sequence[str], wanted: str | Sequence[str], key: str, where: str) -> list[str]:
    """Returns `wanted` as a list. Raises ConfigError for a name that `names` does not have, or has twice."""
    found = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in found:
        if name not in names:
            has = ", ".join(map(repr, names)) or "nothing"
            raise ConfigError(f"{key}={name}: {where} does not have it. It has {has}")
        if found.count(name) > 1:
            raise ConfigError(f"{key}={found}: names {name!r} {found.count(name)} times. Name it once")
    _check_unique(names, found, where)
    return found


def inputs_of(
    names: Sequence[str],
    wanted: str | Sequence[str] | None,
    targets: Sequence[str],
    weights: str | None,
    where: str,
    things: str = "columns",
) -> list[str]:
    """Returns the names of the inputs: `wanted`, or all of `names` that are neither targets nor weights.

    Inputs may be the targets themselves, as an autoencoder's are. Raises ConfigError for inputs that hold a target
    beside other columns, and for names that are not there or not unique.
    """
    if weights in targets:
        raise ConfigError(f"data.weights={weights}: is a target, too. Choose other {things}, or data.weights=null.")
    others = [*targets, *([weights] if weights else [])]
    if wanted is None:
        found = [name for name in names if name not in others]
        if not found:
            raise ConfigError(f"{where} has no {things} beside {', '.join(others)}, so that there are no inputs")
        _check_unique(names, found, where)
        return found
    found = chosen(names, wanted, "data.inputs", where)
    answers = [name for name in found if name in targets]
    if answers and set(found) != set(targets):
        left = [name for name in found if name not in targets]
        how = typed("data.inputs", left) if left else f"{things} that are no targets, or all targets"
        raise ConfigError(
            f"data.inputs={_listed(found)}: {answers[0]} is a target, and a model would read the answer. Choose {how}."
        )
    return found


def check_like(
    names: Sequence[str], inputs: Sequence[str], others: Sequence[str], test: str, train: str, things: str = "columns"
) -> None:
    """Holds the names of a test set to the inputs of the training set, which were not named by the user.

    Raises ConfigError for one that is missing or too many.
    """
    missing = [name for name in inputs if name not in names]
    if missing:
        raise ConfigError(f"{test} lacks the {things} {', '.join(missing)}, which are inputs of {train}")
    more = [name for name in names if name not in inputs and name not in others]
    if more:
        raise ConfigError(
            f"{test} has the {things} {', '.join(more)}, which {train} lacks. Choose {typed('data.inputs', inputs)}, "
            "or leave them out."
        )
    _check_unique(names, inputs, test)


@dataclass(frozen=True)
class StoredValues:
    """The values of a column or an array in one file or split, for each sample. `said`: the dtype in its words."""

    where: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    said: str

    def __str__(self) -> str:
        return f"{list(self.shape)} of {self.said} for each sample"


def check_stored(name: str, train: StoredValues, test: StoredValues, given: torch.dtype | None) -> None:
    """Holds the values of a test set to the training set's. Raises ConfigError for another shape, and for a dtype
    of which `given` would change the values.

    Args:
        given: the dtype in which a model is given an input; None: a target, whose values are looked at as it is read.
    """
    both = f"{test.where}: {name} has {test}, and {train.where} has {train}"
    if test.shape != train.shape:
        raise ConfigError(f"{both}. Give both one shape")
    if given is None:
        return
    if (train.dtype == torch.uint8) != (test.dtype == torch.uint8):
        raise ConfigError(f"{both}. Bytes (uint8) alone are divided by 255; save both with one dtype")
    kept = given.is_floating_point or (
        test.dtype == torch.bool if given == torch.bool else not test.dtype.is_floating_point
    )
    if not kept:
        raise ConfigError(
            f"{both}. A model is given {str(given).removeprefix('torch.')}; save both with one dtype, or choose "
            "data.floats=true"
        )


def _check_unique(names: Sequence[str], used: Sequence[str], where: str) -> None:
    """Raises ConfigError."""
    twice = next((name for name in used if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{where} has {names.count(twice)} columns of the name {twice!r}. Rename or remove them")


def _listed(names: Sequence[str]) -> str:
    return f"[{','.join(names)}]"


def check_said(path: Path | None, example: str, how_to_get: str) -> None:
    """Raises ConfigError where nobody said what to read. `example`: of keys that do."""
    if path is None:
        raise ConfigError(f"data.path=null: must name what is to be read. {how_to_get} For instance: {example}")


def check_there(example: str, how_to_get: str, *paths: Path | None) -> None:
    """Raises ConfigError where the first was not said (see `check_said`), and MissingDataError."""
    check_said(paths[0], example, how_to_get)
    gone = [path for path in paths if path is not None and not is_there(path)]
    if gone:
        raise MissingDataError(" ".join([*(f"{path} is not there." for path in gone), how_to_get]))


def are_one(path: Path | None, test_path: Path | None) -> bool:
    """Returns True if the samples to train on are those for test, too."""
    return path is not None and test_path is not None and is_there(test_path) and path.samefile(test_path)


def kind_of(dtype: torch.dtype, shape: tuple[int, ...], said: Kind | None) -> Kind:
    """Whole numbers are labels, and so is one true or false a sample. Floating ones are numbers, and so are several
    true or false.
    """
    if said is not None:
        return said
    return "numbers" if dtype.is_floating_point or (dtype == torch.bool and len(shape) > 0) else "labels"


@dataclass(frozen=True)
class ClassCount:
    classes: int  # one more than the largest label
    seen: int | None  # different labels; None: there are too many targets to sort them


def are_ignored(labels: np.ndarray, ignored: int | None) -> np.ndarray:
    """Returns which labels do not count, [n] bool. Text is compared by its characters."""
    if ignored is None:
        return np.zeros(len(labels), bool)
    return labels == ignored if labels.dtype.kind in "iuf" else np.char.strip(labels.astype(str)) == str(ignored)


def class_names(known: np.ndarray, ignored: int | None, name: Callable[[Any], str] = str) -> tuple[str, ...]:
    """Returns the names of all numbers that `class_numbers` gives to labels."""
    names = [*map(name, known.tolist())]
    if ignored is not None and 0 <= ignored < len(names):
        names.insert(ignored, str(ignored))
    return tuple(names)


def class_numbers(labels: np.ndarray, known: np.ndarray, ignored: int | None) -> Tensor:
    """Returns the place of each label among those that count, `known` in order. The label `ignored` keeps its value.

    It leaves out targets by that value, so a class that would get it and all classes behind it are one number further.
    """
    left_out = are_ignored(labels, ignored)
    found = np.searchsorted(known, np.where(left_out, known[0], labels))
    if ignored is not None:
        found = np.where(left_out, ignored, found + (found >= ignored) if ignored >= 0 else found)
    return torch.from_numpy(found).long()


def count_classes(targets: Callable[[slice], Tensor], numel: int, where: str, ignored: int | None = None) -> ClassCount:
    """Counts the classes by the largest label.

    Raises ConfigError where it would take long to look, or one label would make a huge model; SampleError.

    Args:
        ignored: the label of targets that do not count.
    """
    if numel > MOST_COUNTED:
        raise ConfigError(f"data.classes=null: {where} are {numel:,}, which takes long to count; say how many")
    found = targets(slice(None))
    if found.is_floating_point():
        found = converted(found, torch.int64, lambda row: f"{where}, sample {row}: its label")
    if ignored is not None:
        found = torch.where(found == ignored, found.new_zeros(()), found)
    smallest, largest = (int(bound) for bound in found.aminmax())
    if smallest < 0:
        row = int((found < 0).reshape(len(found), -1).any(dim=1).nonzero()[0])
        raise SampleError(f"{where}, sample {row}: its label is {label_in_words(smallest)}")
    if largest >= max(MOST_LABELS, numel):
        raise ConfigError(
            f"data.classes=null: the largest label of {where} is {largest:,}, and classes are numbered 0, 1, ... up to "
            "it. Number them without gaps, or set data.classes"
        )
    return ClassCount(max(largest + 1, 2), len(found.unique()) if numel <= MOST_SORTED else None)
