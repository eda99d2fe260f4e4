"""Any map-style `torch.utils.data.Dataset`, as a data set: samples are read when they are wanted."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from ...conf.errors import ConfigError
from ..base import Data, DataSpec, Described, Field
from ..items import Items, tensor_of
from .parts import fifth, sizes

OWN = (
    "classes",
    "limit",
    "loader_workers",
    "targets",
)  # knobs that are ours, unless the Dataset's constructor has one of the name


class OfDataset(Data):
    """`make(train=...)` makes the Dataset, once for training and once for test; where it takes no `train`, it is
    called once, and a fixed fifth is for test. A sample is a pair (inputs, target), or a dict, of which the entry
    `targets` is learnt (None: "labels", or else "label") and all others are inputs.

    Shapes and dtypes are those of the first sample, which is read to know them. `classes`: of labels; None takes what
    the Dataset says of itself: the length of `classes`, or the largest of `targets`.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        name: str,
        takes_train: bool,
        classes: int | None = None,
        limit: int | None = None,
        loader_workers: int = 0,
        targets: str | None = None,
    ) -> None:
        self.targets = targets
        self._make, self.name, self.takes_train = make, name, takes_train
        self.classes, self.limit, self.loader_workers = classes, limit, loader_workers
        self._made: tuple[Any, Any] | None = None
        self._spec: DataSpec | None = None

    def _sources(self) -> tuple[Any, Any]:
        """Returns the sources for training and for test; they are the same if there is only one."""
        if self._made is None:
            made = [self._make(train=train) for train in (True, False)] if self.takes_train else [self._make()] * 2
            for source in made:
                if not hasattr(source, "__len__") or len(source) == 0:
                    raise ConfigError(f"{self.name} has no samples, or no __len__; must have both")
            made = [_Pairs(source, self.targets) for source in made]
            self._check_classes(*(each.dataset for each in made))
            self._made = made[0], made[1]
        return self._made

    def _check_classes(self, train: Any, test: Any) -> None:
        """A label is a number, and both Datasets must mean the same class by it. Raises ConfigError."""
        told = [_classes_of(source) for source in (train, test)]
        if None not in told and told[0] != told[1]:
            of_train, of_test = (", ".join(map(str, (each or [])[:8])) for each in told)
            raise ConfigError(
                f"{self.name}: with train=False it numbers the classes {of_test}, and with train=True {of_train}. Both "
                "must have the same classes"
            )

    @property
    def spec(self) -> DataSpec:
        if self._spec is None:
            self._spec = self._looked_at()
        return self._spec

    def _looked_at(self) -> DataSpec:
        train, test = self._sources()
        what = f"{self.name}, sample 0"
        read = train[0]
        if not isinstance(read, tuple | list) or len(read) != 2:
            raise ConfigError(
                f"{what} is a {type(read).__name__}; must be a pair (inputs, target), or a dict with the entry `labels`"
            )
        given, target = read[0], tensor_of(read[1], None, f"{what}: the target")
        several = given if isinstance(given, Mapping | tuple | list) and not _is_numbers(given) else None
        named = (
            several.items() if isinstance(several, Mapping) else enumerate(several if several is not None else [given])
        )
        fields = {key: _field(value, f"{what}: the input {key!r}") for key, value in named}
        inputs = None if several is None else fields if isinstance(several, Mapping) else tuple(fields.values())
        lone = next(iter(fields.values()))
        labels = target.dtype == torch.int64
        held = len(test) if self.takes_train else None
        instead = "Let the class take train=False, for a test set"
        train_size, test_size = sizes(len(train), held, self.limit, self.name, instead)
        return DataSpec(
            input_shape=lone.shape,
            input_dtype=lone.dtype,
            target_shape=tuple(target.shape),
            classes=self._count(train.dataset, target) if labels else 0,
            train_size=train_size,
            test_size=test_size,
            target_dtype=target.dtype,
            inputs=inputs,  # pyright: ignore[reportArgumentType]
            ignored=self.ignored,
        )

    def _count(self, source: Any, first: Tensor) -> int:
        if self.classes is not None:
            return self.classes
        if (told := _classes_of(source)) is not None:
            return len(told)
        if (targets := _targets_of(source, first.shape, first.dtype)) is not None:
            return max(int(targets[targets != self.ignored].amax()) + 1, 2)
        raise ConfigError(
            f"data.classes: {self.name} does not say how many classes it has, in an attribute `classes` or `targets`; "
            "set +data.classes=..., or make targets floating numbers for a regression"
        )

    def load(self) -> tuple[Items, Items]:
        spec, (train, test) = self.spec, self._sources()
        kind = spec.target_shape, spec.target_dtype
        whole = [
            Items(source, spec, f"{self.name}, {split} split", _targets_of(source.dataset, *kind))
            for source, split in ((train, "train"), (test, "test"))
        ]
        if self.takes_train:
            return whole[0].first(self.limit), whole[1]
        first, second = fifth(len(train), self.name)
        return whole[0].rows(first).first(self.limit), whole[1].rows(second)

    def described(self) -> Described:
        names = _classes_of(self._sources()[0].dataset) if self.spec.classes else None
        return Described(classes=tuple(map(str, names)) if names else None)

    def how_to_get(self) -> str:
        return f"{self.name} makes or reads them."

    def found(self) -> str | None:
        return f"where {self.name} has them"


class _Pairs:
    """A Dataset whose dicts are pairs of inputs and a target. `targets`: the name of the target."""

    def __init__(self, dataset: Any, targets: str | None) -> None:
        self.dataset, self._targets = dataset, targets

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Any:
        read = self.dataset[number]
        if not isinstance(read, Mapping):
            return read
        name = self._targets or ("labels" if "labels" in read else "label")
        if name not in read:
            raise ConfigError(f"+data.targets={name}: a sample has the entries {', '.join(map(str, read))}. Name one.")
        return {key: value for key, value in read.items() if key != name}, read[name]


def of_dataset(cls: type[Any], knobs: dict[str, Any]) -> OfDataset:
    """Wraps a class derived from torch's Dataset, and its knobs with ours among them. Raises ConfigError."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    if issubclass(cls, IterableDataset):
        raise ConfigError(
            f"data: {name} is an IterableDataset, and samples are dealt to workers by their numbers; must be a "
            "map-style Dataset, with __len__ and __getitem__"
        )
    theirs = inspect.signature(cls).parameters
    ours = {key: knobs[key] for key in OWN if key in knobs and key not in theirs}
    rest = {key: value for key, value in knobs.items() if key not in ours}
    for key, value in ours.items():
        if key == "targets":
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"data.targets={value}: must be the name of an entry")
            continue
        least = {"classes": 2, "limit": 1, "loader_workers": 0}[key]
        if value is not None and (type(value) is not int or value < least):
            raise ConfigError(f"data.{key}={value}: must be a whole number of {least} or more")

    def make(**more: bool) -> Any:
        return cls(**rest, **more)

    return OfDataset(make, name, "train" in theirs and "train" not in rest, **ours)


def _field(value: Any, what: str) -> Field:
    tensor = tensor_of(value, None, what)
    bytes_like = getattr(value, "dtype", None) in (torch.bool,)
    return Field(tuple(tensor.shape), torch.bool if bytes_like else tensor.dtype)


def _is_numbers(given: Any) -> bool:
    """A list of plain numbers is one input."""
    return not isinstance(given, Mapping) and all(isinstance(each, int | float) for each in given)


def _classes_of(source: Any) -> list[Any] | None:
    """The classes in the order of their labels, where the Dataset says them, as torchvision's do."""
    told: Any = getattr(source, "classes", None)
    told = told.tolist() if hasattr(told, "tolist") else told  # of NumPy or pandas
    return list(told) if isinstance(told, Sequence) and not isinstance(told, str) else None


def _targets_of(source: Any, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
    """Returns the targets of all samples, [n, *shape], if the Dataset has them, as torchvision's do. An attribute that
    is not one such target for each sample is ignored.
    """
    told = getattr(source, "targets", None)
    try:
        # np.array takes values by place, where torch takes a column of a table by its labels
        targets = tensor_of(told if isinstance(told, Tensor | np.ndarray) else np.array(told), dtype, "targets")
    except (TypeError, ValueError, RuntimeError):
        return None
    return targets if targets.shape == (len(source), *shape) else None


def is_dataset(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, Dataset)
