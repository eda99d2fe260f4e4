"""A torch Dataset in the place of a data set: shapes of the first sample, samples when they are wanted."""

import itertools
from contextlib import nullcontext
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from paceline.conf.errors import ConfigError
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import Choice
from paceline.engine.config.targets import build
from paceline.engine.planning.build import assemble
from paceline.tasks.base import Data
from paceline.tasks.checks import load_checked
from paceline.tasks.data.parts import fifth
from paceline.tasks.errors import SampleError
from paceline.tasks.items import Items
from paceline.tasks.losses import CrossEntropy
from paceline.tasks.losses.weighted_labels import WeightedLabels
from paceline.tasks.partition import Dirichlet
from paceline.tasks.task_data import TaskData

HERE = __name__


class Dots(Dataset[Any]):
    """`kind`: what a sample is."""

    def __init__(self, kind: str = "labels", size: int = 20, train: bool = True) -> None:
        self.kind, self.size = kind, size if train else 6
        if kind == "known":
            self.targets = [number % 3 for number in range(self.size)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> Any:
        x = torch.full((2, 2), float(number))
        kinds = {
            "labels": (x, number % 3),
            "known": (x, number % 3),
            "numbers": ([1.0, float(number)], [0.5, 1.0]),
            "dict": ({"a": x, "b": number}, number % 3),
            "tuple": ((x, number), number % 3),
            "alone": x,
        }
        return kinds[self.kind]


class Whole(Dots):
    def __init__(self) -> None:
        super().__init__("known")


class Refilled(Dots):
    """All samples are one tensor, which is filled anew."""

    def __init__(self) -> None:
        super().__init__("known")
        self.x = torch.zeros(2, 2)

    def __getitem__(self, number: int) -> Any:
        return self.x.fill_(number), number % 3


class Renumbered(Dots):
    """Its attribute has other targets than its samples."""

    def __init__(self) -> None:
        super().__init__("known")
        self.targets = [(number + 1) % 3 for number in range(20)]


class Told(Dots):
    """Twenty samples of the labels 0, 1 and 2, and an attribute in another form."""

    def __init__(self, kind: str) -> None:
        super().__init__("known")
        labels = [number % 3 for number in range(20)]
        column = pd.Series(labels, index=[3 * number for number in range(20)])
        kinds: dict[str, Any] = {
            "column": column,
            "without 0": column[::-1],
            "floating": column.astype(float),
            "bytes": torch.tensor(labels, dtype=torch.uint8),
            "frame": pd.DataFrame({number: labels for number in (0, 1)}),
            "one-hot": torch.eye(3)[labels],
            "beyond": [-1, *labels[1:]],
            "halves": [0.5] * 20,
            "missing": pd.Series([None, *labels[1:]]),
            "names": pd.Series(["a"] * 20),
            "dict": dict.fromkeys(range(20), 1),
        }
        self.targets = kinds[kind]


class Named(Dots):
    """Its classes have names."""

    def __init__(self, kind: str) -> None:
        super().__init__("known")
        names = ["red", "green", "blue"]
        self.classes = {"array": np.array(names), "index": pd.Index(names), "tuple": tuple(names)}[kind]
        del self.targets


class Stream(IterableDataset[Tensor]):
    pass


def data_of(name: str, **knobs: object) -> Data:
    return build("data", Choice(name="mine", target=f"{HERE}.{name}", knobs=knobs), Data, (HERE,), {})


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [("labels", {"inputs": (2, 2)}), ("dict", {"a": (2, 2), "b": ()}), ("tuple", {0: (2, 2), 1: ()})],
)
def test_a_dataset_is_split_by_its_train_and_read_by_numbers(kind: str, shapes: dict[object, tuple[int, ...]]) -> None:
    data = data_of("Dots", kind=kind, classes=3, limit=15, loader_workers=2)
    assert {key: field.shape for key, field in data.spec.fields.items()} == shapes and data.loader_workers == 2
    train, test = load_checked("mine", data)
    assert (len(train), len(test)) == (15, 6) == (data.spec.train_size, data.spec.test_size)
    taken = train.take(torch.tensor([7, 1]))
    first = taken.inputs if isinstance(taken.inputs, Tensor) else next(iter(taken.inputs.tensors.values()))
    assert first[:, 0, 0].tolist() == [7.0, 1.0] and taken.targets.tolist() == [1, 1]


def test_one_that_is_not_split_gives_a_fifth_for_test_and_numbers_are_a_regression() -> None:
    data = data_of("Whole")
    train, test = load_checked("mine", data)
    numbers = [split.take(slice(None)).inputs[:, 0, 0].tolist() for split in (train, test)]  # pyright: ignore
    assert sorted([*numbers[0], *numbers[1]]) == list(range(20)) and len(numbers[1]) == 4
    assert isinstance(train, Items) and train.targets is not None and data.spec.classes == 3
    assert train.targets.tolist() == [number % 3 for number in numbers[0]]
    spec = data_of("Dots", kind="numbers").spec
    assert (spec.input_shape, spec.target_shape, spec.targets) == ((2,), (2,), "numbers")


@pytest.mark.parametrize("kind", ["column", "without 0", "floating", "bytes"])
def test_an_attribute_of_targets_is_read_by_place_as_labels(kind: str) -> None:
    data = data_of("Told", kind=kind)
    train, _ = load_checked("mine", data)
    labels = [int(label) for label in Told(kind).targets]
    numbers = fifth(20, "mine")[0].tolist()
    assert train.targets is not None and train.targets.dtype == torch.int64 and data.spec.classes == 3
    assert train.targets.tolist() == [labels[number] for number in numbers]


@pytest.mark.parametrize("kind", ["array", "index", "tuple"])
def test_classes_may_be_any_list_of_names(kind: str) -> None:
    data = data_of("Named", kind=kind)
    assert data.spec.classes == 3 and data.described().classes == ("red", "green", "blue")


@pytest.mark.parametrize("kind", ["frame", "one-hot", "halves", "missing", "names", "dict"])
def test_an_attribute_that_is_not_one_target_for_each_sample_is_ignored(kind: str) -> None:
    assert load_checked("mine", data_of("Told", kind=kind, classes=3))[0].targets is None
    with pytest.raises(ConfigError, match="does not say how many classes"):
        _ = data_of("Told", kind=kind).spec


def test_a_sample_keeps_its_values_when_the_next_one_takes_its_memory() -> None:
    train, _ = load_checked("mine", data_of("Refilled"))
    assert isinstance(train, Items)
    taken = train.take(torch.tensor([2, 0]))
    again = [train.take(torch.tensor([each])).inputs[0, 0, 0] for each in (2, 0)]  # pyright: ignore
    assert taken.inputs[:, 0, 0].tolist() == again and again[0] != again[1]  # pyright: ignore


def test_targets_are_not_weighed_by_an_attribute_that_says_others() -> None:
    for name, task in itertools.product(("Whole", "Renumbered"), (CrossEntropy(), WeightedLabels([1.0, 5.0, 1.0]))):
        data = data_of(name)
        train = TaskData(data, task, lambda data=data: load_checked("mine", data)).load()[0]
        weighed = name == "Renumbered" and isinstance(task, WeightedLabels)
        with pytest.raises(SampleError, match="attribute `targets`") if weighed else nullcontext():
            train.take(torch.tensor([7, 1]))


@pytest.mark.budget(1)
@pytest.mark.parametrize("partition", ["shuffled", "dirichlet", "by_label", "clusters"])
def test_samples_are_not_dealt_or_counted_by_an_attribute_that_says_others(partition: str) -> None:
    for name in ("Whole", "Renumbered"):
        given = [f"data={{_target_:{HERE}.{name}}}", f"partition={partition}", "hardware=virtual", "batch_size=4"]
        train, test = assemble(compose([*given, "model=mlp", "tracking=none"]), (HERE,)).load()
        for split in (train, test):
            is_wrong = name == "Renumbered" and partition != "shuffled"
            with pytest.raises(SampleError, match="attribute `targets`") if is_wrong else nullcontext():
                split.take(slice(0, 3))


@pytest.mark.parametrize("task", [WeightedLabels("balanced"), WeightedLabels([1.0, 5.0, 1.0])])
def test_an_attribute_with_labels_that_no_class_has_is_refused_before_they_are_counted(task: WeightedLabels) -> None:
    data = data_of("Told", kind="beyond", classes=3)
    with pytest.raises(SampleError, match="attribute `targets`: its label is -1; must be 0 or more"):
        TaskData(data, task, lambda: load_checked("mine", data)).load()


@pytest.mark.parametrize(
    ("name", "knobs", "sentence"),
    [
        ("Dots", {"kind": "labels"}, "does not say how many classes it has"),
        ("Dots", {"kind": "alone"}, "sample 0 is a Tensor; must be a pair (inputs, target)"),
        ("Dots", {"size": 0}, "has no samples"),
        ("Dots", {"sise": 3}, "data.sise: Dots has no such parameter; did you mean size?"),
        ("Dots", {"classes": 1}, "data.classes=1: must be a whole number of 2 or more"),
        ("Stream", {}, "is an IterableDataset, and samples are dealt to workers by their numbers"),
    ],
)
def test_what_cannot_be_dealt_by_numbers_is_refused(name: str, knobs: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _ = data_of(name, **knobs).spec
    assert sentence in str(caught.value)


def test_labels_that_nobody_knows_before_cannot_deal_samples() -> None:
    unknown = torch.empty(20, dtype=torch.int64, device="meta")
    with pytest.raises(ConfigError, match="no label is known before its sample is read"):
        Dirichlet().deal(unknown, 2, 4, 0)
