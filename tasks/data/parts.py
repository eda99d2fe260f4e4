"""What choices of a person's own files have in common: a part of them for test, and the words for what is wrong."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import MissingDataError, TaskConfigError
from .files import is_there

SPLIT_SEED = 0  # a constant: runs with different seeds share one test set
TEST = 5  # every so many samples, one is for test
MOST_COUNTED = 1 << 26  # labels that are looked at to count the classes, where nobody says how many there are
Kind = Literal["labels", "numbers"]


def fifth(size: int, where: str) -> tuple[Tensor, Tensor]:
    """The numbers of a random four fifths for training and of a fifth for test, the same in each run.

    Raises TaskConfigError where a fifth is none.
    """
    if size < TEST:
        raise TaskConfigError(f"{where}: of {size} samples, a fifth for test is none; data.test_path names a test set")
    order = torch.from_numpy(np.random.default_rng(SPLIT_SEED).permutation(size))
    test = size // TEST
    return order[test:], order[:test]  # not in the order of the file: the first so many shall be of all kinds


def sizes(size: int, test: int | None, limit: int | None) -> tuple[int, int]:
    """Of the training and of the test split, of a file of `size` samples and maybe another one of `test`."""
    train, held = (size, test) if test is not None else (size - size // TEST, size // TEST)
    return (train if limit is None else min(train, limit)), held


def chosen(names: Sequence[str], wanted: str | Sequence[str], key: str, where: str) -> list[str]:
    """`wanted` as a list. Raises TaskConfigError for a name that is not there."""
    found = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in found:
        if name not in names:
            raise TaskConfigError(f"{key}={name}: {where} has no such; it has {', '.join(map(repr, names))}")
    return found


def asked(path: str | None) -> Path | None:
    return None if path is None else Path(path).expanduser()


def check_said(path: Path | None, example: str, how_to_get: str) -> None:
    """Raises TaskConfigError where nobody said what to read. `example`: of keys that do."""
    if path is None:
        raise TaskConfigError(f"data.path=null: must name what is to be read. {how_to_get} For instance: {example}")


def check_there(example: str, how_to_get: str, *paths: Path | None) -> None:
    """Raises TaskConfigError where the first was not said (see `check_said`), and MissingDataError."""
    check_said(paths[0], example, how_to_get)
    gone = [path for path in paths if path is not None and not is_there(path)]
    if gone:
        raise MissingDataError(" ".join([*(f"{path} is not there." for path in gone), how_to_get]))


def kind_of(dtype: torch.dtype, shape: tuple[int, ...], said: Kind | None) -> Kind:
    """Whole numbers are labels, and so is one true or false a sample. Floating ones are numbers, and so are several
    true or false.
    """
    if said is not None:
        return said
    return "numbers" if dtype.is_floating_point or (dtype == torch.bool and len(shape) > 0) else "labels"


def count_classes(targets: Callable[[slice], Tensor], dtype: torch.dtype, numel: int, where: str) -> int:
    """One more than the largest label. Raises TaskConfigError where it would take long to look."""
    if dtype.is_floating_point:
        raise TaskConfigError(f"{where} are {dtype}; labels must be whole numbers (data.kind=numbers: regression)")
    if numel > MOST_COUNTED:
        raise TaskConfigError(f"data.classes=null: {where} are {numel:,}, which takes long to count; say how many")
    return max(int(targets(slice(None)).max()) + 1, 2)
