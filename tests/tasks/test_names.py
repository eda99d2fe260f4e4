"""Things with names are matched by name: columns, arrays and classes of a training and a test set."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from needs import needs_datasets, needs_pyarrow
from torch import Tensor
from torch.utils.data import Dataset

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.tasks.base import Data, Taken
from paceline.tasks.checks import load_checked
from paceline.tasks.data.arrays import Arrays
from paceline.tasks.data.hugging_face import HuggingFace
from paceline.tasks.data.svmlight import SVMLight
from paceline.tasks.data.table import Table
from paceline.tasks.data.torch_dataset import of_dataset
from paceline.tasks.errors import CorruptDataError

ROWS = 7
A, B = np.arange(ROWS, dtype=np.float32), 100 + np.arange(ROWS, dtype=np.float32)
LABELS = np.arange(ROWS) % 2


def of_test(data: Data) -> Taken:
    return load_checked("own", data)[1].take(slice(None))


def csv(path: Path, **columns: Any) -> str:
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def parquet(path: Path, **columns: Any) -> str:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


@needs_pyarrow
@pytest.mark.parametrize("write", [csv, parquet])
def test_columns_of_a_test_file_are_read_by_name(write: Any, tmp_path: Path) -> None:
    suffix = ".csv" if write is csv else ".parquet"
    train = write(tmp_path / f"train{suffix}", a=A, b=B, target=LABELS)
    other = write(tmp_path / f"test{suffix}", target=LABELS, b=B, a=A)
    taken = of_test(Table(train, other, standardize=False))
    np.testing.assert_array_equal(taken.inputs, np.stack([A, B], axis=1))
    fewer = write(tmp_path / f"fewer{suffix}", target=LABELS, a=A)
    with pytest.raises(ConfigError, match=rf"fewer{suffix} lacks the columns b, which are inputs of .*train{suffix}"):
        _ = Table(train, fewer).spec
    more = write(tmp_path / f"more{suffix}", target=LABELS, a=A, c=A, b=B)
    with pytest.raises(ConfigError, match=rf"more{suffix} has the columns c, which .* Choose 'data\.inputs=\[a,b\]'"):
        _ = Table(train, more).spec
    assert torch.equal(of_test(Table(train, more, ["a", "b"], standardize=False)).inputs, taken.inputs)  # pyright: ignore


@needs_pyarrow
def test_classes_of_a_test_table_are_those_of_the_training_table(tmp_path: Path) -> None:
    """The test file alone would tell whole numbers, where the training file has text."""
    train = csv(tmp_path / "train.csv", a=A, target=["1", "2", "x", "1", "2", "x", "1"])
    test = csv(tmp_path / "test.csv", a=A, target=["2", "1"] * 3 + ["2"])
    assert of_test(Table(train, test)).targets.tolist() == [1, 0, 1, 0, 1, 0, 1]
    assert of_test(Table(train, parquet(tmp_path / "t.parquet", a=A, target=[2, 1, 2, 1, 2, 1, 2]))).targets[0] == 1


@needs_pyarrow
def test_a_class_that_the_training_table_lacks_is_named_with_the_nearest(tmp_path: Path) -> None:
    train = csv(tmp_path / "train.csv", a=A, target=[" x", "y", "z"] * 2 + ["y"])
    test = csv(tmp_path / "test.csv", a=A, target=["y", "X", "y", "X", "y", "z", "z"])
    with pytest.raises(
        CorruptDataError, match=r"is 'X' in row 1 .*train\.csv does not have, but ' x'\. Write them alike"
    ):
        Table(train, test).load()
    test = csv(tmp_path / "test.csv", a=A, target=["y", "y", "w", "y", "y", "z", "z"])
    with pytest.raises(CorruptDataError, match=r"is 'w' in row 2 .*train\.csv does not have$"):
        Table(train, test).load()


@needs_pyarrow
@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        ([False, True] * 3 + [True], [0, 1, 1, 2, 0, 0, 0], "target is 2 in row 3 .* and True as bool"),
        ([False, True] * 3 + [True], [0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0], "target is 0.5 in row 1 .* and True as bool"),
        ([1, 2] * 3 + [1], ["1", "2", "1", "1", "01", "1", "1"], "target is '01' in row 4 .* and 1 as int64"),
        ([1, 2] * 3 + [1], [1.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.5], r"1\.5"),
    ],
)
def test_a_label_that_the_type_of_the_training_table_changes_is_refused(
    train: list[Any], test: list[Any], said: str, tmp_path: Path
) -> None:
    path = parquet(tmp_path / "train.parquet", a=A, target=train)
    with pytest.raises(CorruptDataError, match=said):
        Table(path, parquet(tmp_path / "test.parquet", a=A, target=test), targets="target").load()
    fits = [type(test[0])(int(label)) for label in train]
    found = of_test(Table(path, parquet(tmp_path / "fits.parquet", a=A, target=fits))).targets
    assert found.tolist() == [int(label) - int(min(train)) for label in train]


@pytest.mark.parametrize("kind", ["npz", "safetensors", "npy"])
def test_arrays_of_a_test_file_are_read_by_name(kind: str, tmp_path: Path) -> None:
    def write(name: str, **arrays: np.ndarray) -> str:
        path = tmp_path / name
        if kind == "npz":
            np.savez(path := path.with_suffix(".npz"), **arrays)  # pyright: ignore[reportArgumentType]
        elif kind == "safetensors":
            safetensors.numpy.save_file(arrays, path := path.with_suffix(".safetensors"))
        else:
            path.mkdir()
            for each, array in arrays.items():
                np.save(path / f"{each}.npy", array)
        return str(path)

    np.savez(tmp_path / "train.npz", b=B, a=A, targets=LABELS)
    train = str(tmp_path / "train.npz")
    taken = of_test(Arrays(train, write("test", a=A, targets=LABELS, b=B)))
    found = taken.inputs.tensors  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_array_equal(found["a"], A)
    np.testing.assert_array_equal(found["b"], B)
    with pytest.raises(ConfigError, match=r"fewer.* lacks the arrays b, which are inputs of .*train"):
        _ = Arrays(train, write("fewer", a=A, targets=LABELS)).spec
    more = write("more", a=A, b=B, c=B, targets=LABELS)
    with pytest.raises(ConfigError, match=r"more.* has the arrays c, which .*train.* Choose 'data\.inputs=\[b,a\]'"):
        _ = Arrays(train, more).spec
    assert [*Arrays(train, more, ["a", "b"]).spec.fields] == ["a", "b"]


def saved(folder: Path, **splits: dict[str, Any]) -> str:
    import datasets

    found: Any = {name: datasets.Dataset.from_dict(columns) for name, columns in splits.items()}
    datasets.DatasetDict(found).save_to_disk(str(folder))
    return str(folder)


@needs_datasets
def test_columns_of_a_saved_test_split_are_read_by_name(tmp_path: Path) -> None:
    train = {"a": A, "b": B, "label": LABELS}
    path = saved(tmp_path / "ok", train=train, test={"label": LABELS, "b": B, "a": A})
    found = of_test(HuggingFace(path)).inputs.tensors  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_array_equal(found["a"], A)
    np.testing.assert_array_equal(found["b"], B)
    for test, sentence in (
        ({"a": A, "label": LABELS}, "the split test .* lacks the columns b, which are inputs of the split train"),
        ({**train, "c": A}, r"the split test .* has the columns c, .* Choose 'data\.inputs=\[a,b\]'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            _ = HuggingFace(saved(tmp_path / str(len(test)), train=train, test=test)).spec


@needs_datasets
def test_splits_that_number_their_classes_in_other_orders_are_refused(tmp_path: Path) -> None:
    import datasets

    def split(names: list[str]) -> Any:
        features = datasets.Features({"a": datasets.Value("float32"), "label": datasets.ClassLabel(names=names)})
        return datasets.Dataset.from_dict({"a": A, "label": LABELS}, features=features)

    both: Any = {"train": split(["cat", "dog"]), "test": split(["dog", "cat"])}
    datasets.DatasetDict(both).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(ConfigError, match="numbers the classes dog, cat, and the split train numbers cat, dog"):
        _ = HuggingFace(str(tmp_path / "saved")).spec


class Pets(Dataset[tuple[Tensor, int]]):
    def __init__(self, train: bool = True) -> None:
        self.classes = ["cat", "dog"] if train else ["dog", "cat"]

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.zeros(2), i % 2


def test_a_torch_dataset_with_other_classes_for_test_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train=False it numbers the classes dog, cat, and with train=True cat, dog"):
        _ = of_dataset(Pets, {}).spec


def test_features_and_labels_of_svmlight_are_numbers_of_their_own(tmp_path: Path) -> None:
    """A test file that lacks a feature, or has its labels in another order, is read alike."""
    (tmp_path / "a.svm").write_text("-1 1:1 3:2\n+1 2:5\n")
    (tmp_path / "b.svm").write_text("+1 3:7\n-1 1:4\n")
    taken = of_test(SVMLight(str(tmp_path / "a.svm"), str(tmp_path / "b.svm"), features=4, nonzeros=2))
    assert isinstance(taken.inputs, Tensor)
    assert taken.inputs[:, :, 0].tolist() == [[2, 7], [0, 4]] and taken.targets.tolist() == [1, 0]


@pytest.mark.parametrize("kind", [pytest.param("table", marks=needs_pyarrow), "svmlight"])
@pytest.mark.parametrize(
    ("labels", "ignored", "numbers"),
    [
        ([3, 5, -100], -100, [0, 1, -100]),
        ([0, 1, 2], 0, [0, 1, 2]),
        ([0, 1, 2], 1, [0, 1, 2]),
        ([7, 1, 5], 1, [2, 1, 0]),
        ([0, 1, 255], 255, [0, 1, 255]),
        (["cat", "dog", " -100"], -100, [0, 1, -100]),
        (["1", "a", "b"], 1, [1, 0, 2]),
    ],
)
def test_no_class_gets_the_number_of_the_label_that_does_not_count(
    kind: str, labels: list[Any], ignored: int, numbers: list[int], tmp_path: Path
) -> None:
    path, is_table = tmp_path / "x.csv", kind == "table"
    if not is_table and isinstance(labels[0], str):
        pytest.skip("labels of svmlight are numbers")
    rows = [f"{i},{labels[i % 3]}\n" if is_table else f"{labels[i % 3]} 1:{i}\n" for i in range(30)]
    path.write_text("".join(["a,target\n"] * is_table + rows))
    data: Data = Table(str(path), standardize=False) if is_table else SVMLight(str(path), classes=3)
    data.ignored = ignored
    for split in load_checked(kind, data):
        taken = split.take(slice(None))
        rows = lone(taken.inputs)[:, 0].long() if is_table else lone(taken.inputs)[:, 1, 0].long()
        assert taken.targets.tolist() == [numbers[row % 3] for row in rows.tolist()]
