"""Values of a file reach a model as the file has them, in training and in test, or are refused by name."""

import gzip
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import needs_datasets, needs_pyarrow
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.tasks.base import Data, DataSpec
from paceline.tasks.checks import load_checked
from paceline.tasks.contents import contents
from paceline.tasks.data import table_files
from paceline.tasks.data.arrays import Arrays
from paceline.tasks.data.hugging_face import HuggingFace
from paceline.tasks.data.table import Table
from paceline.tasks.errors import CorruptDataError, SampleError
from paceline.tasks.items import Items

N = 10
X = np.arange(2 * N).reshape(N, 2)
LABELS = np.arange(N) % 3


def of_both(data: Data) -> list[tuple[list[Any], list[Any]]]:
    """The inputs and targets of the training and the test split."""
    taken = [split.take(slice(None)) for split in load_checked("own", data)]
    return [(each.inputs.tolist(), each.targets.tolist()) for each in taken]  # pyright: ignore


def arrays(folder: Path, train: dict[str, Any], test: dict[str, Any], **knobs: Any) -> Arrays:
    folder.mkdir(parents=True, exist_ok=True)
    for name, held in (("train", train), ("test", test)):
        np.savez(folder / f"{name}.npz", **{"x": X.astype("f4"), "targets": LABELS, **held})
    return Arrays(str(folder / "train.npz"), str(folder / "test.npz"), **knobs)


def saved(folder: Path, train: dict[str, Any], test: dict[str, Any], **knobs: Any) -> HuggingFace:
    """Columns are arrays, or pairs of values and a feature."""
    import datasets

    def split(columns: dict[str, Any]) -> Any:
        told = {"x": X.astype("f4"), "targets": LABELS, **columns}
        pairs = {name: each if isinstance(each, tuple) else (each, feature_of(each)) for name, each in told.items()}
        features = datasets.Features({name: feature for name, (_, feature) in pairs.items()})
        return datasets.Dataset.from_dict(
            {name: np.asarray(values).tolist() for name, (values, _) in pairs.items()}, features=features
        )

    def feature_of(array: np.ndarray) -> Any:
        value = datasets.Value(str(array.dtype))
        return value if array.ndim == 1 else datasets.List(value)

    both: Any = {"train": split(train), "test": split(test)}
    datasets.DatasetDict(both).save_to_disk(str(folder / "saved"))
    return HuggingFace(str(folder / "saved"), targets="targets", **knobs)


MAKERS = ["arrays", pytest.param("saved", marks=needs_datasets)]


def made(how: str, *told: Any, **knobs: Any) -> Data:
    return {"arrays": arrays, "saved": saved}[how](*told, **knobs)


# -- the same value in both splits


@pytest.mark.parametrize(
    ("train", "test", "floats"), [("u1", "f4", False), ("f4", "u1", False), ("i8", "u1", True), ("u1", "i8", True)]
)
def test_bytes_and_other_numbers_are_not_taken_for_each_other(
    train: str, test: str, floats: bool, tmp_path: Path
) -> None:
    data = arrays(tmp_path, {"x": X.astype(train)}, {"x": X.astype(test)}, floats=floats)
    said = f"test.npz: x has [2] of {np.dtype(test)} for each sample, and data.path="
    with pytest.raises(ConfigError) as caught:
        load_checked("arrays", data)
    assert said in str(caught.value) and f"train.npz has [2] of {np.dtype(train)} for" in str(caught.value)
    assert "Bytes (uint8) alone are divided by 255" in str(caught.value)


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        ("i8", "f4", r"x has \[2\] of float32 .* has \[2\] of int64 .* is given int64; .* data\.floats=true"),
        ("?", "i8", r"x has \[2\] of int64 .* has \[2\] of bool .* is given bool; .* data\.floats=true"),
    ],
)
def test_inputs_of_a_kind_that_would_lose_values_are_refused(
    how: str, train: str, test: str, said: str, tmp_path: Path
) -> None:
    told = tmp_path, {"x": (X % 5).astype(train)}, {"x": (X % 5).astype(test)}
    with pytest.raises(ConfigError, match=said):
        _ = made(how, *told).spec
    (_, _), (inputs, _) = of_both(made(how, *told, floats=True))
    assert inputs == (X % 5).tolist()


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize(("train", "test"), [("f4", "f8"), ("f8", "f2"), ("f4", "i2"), ("i8", "i1"), ("i8", "?")])
def test_inputs_of_a_kind_that_keeps_values_are_taken(how: str, train: str, test: str, tmp_path: Path) -> None:
    values = X % 2
    (one, _), (other, _) = of_both(made(how, tmp_path, {"x": values.astype(train)}, {"x": values.astype(test)}))
    assert one == other == values.tolist()


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize("name", ["x", "targets"])
def test_a_test_set_of_another_shape_is_refused_before_it_is_read(how: str, name: str, tmp_path: Path) -> None:
    data = made(how, tmp_path, {name: np.ones((N, 2))}, {name: np.ones((N, 3))})
    said = rf"data\.test.*: {name} has \[3\] of float64 for each sample, and .*train.* has \[2\] of float64"
    with pytest.raises(ConfigError, match=said):
        _ = data.spec


def lines(path: Path, inputs: list[Any]) -> str:
    """JSON lines of one input column, and a label."""
    return lines_of(path, [{"x": each, "target": f"k{i % 2}"} for i, each in enumerate(inputs)])


def lines_of(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(path)


@needs_pyarrow
@pytest.mark.parametrize("cells", [["007", "1.50"], ["true", "TRUE"], ["1", "x"]])
def test_a_text_that_looks_like_numbers_in_the_test_file_is_read_as_text(cells: list[str], tmp_path: Path) -> None:
    for name, held in (("train", ["ab", "cd"] * 2), ("test", cells)):
        rows = "".join(f"{each},{i % 2}\n" for i, each in enumerate(held))
        (tmp_path / f"{name}.csv").write_text(f"x,target\n{rows}")
    data = Table(str(tmp_path / "train.csv"), str(tmp_path / "test.csv"), tokens="bytes", length=4)
    assert of_both(data)[1][0] == [[*each.encode()] + [0] * (4 - len(each)) for each in cells]


@needs_pyarrow
@pytest.mark.parametrize(("train", "test"), [("ab", 12), ([1, 2], 3), (3, [1, 2]), ("ab", [1, 2])])
def test_a_column_of_another_kind_in_the_test_file_is_refused(train: Any, test: Any, tmp_path: Path) -> None:
    paths = lines(tmp_path / "train.jsonl", [train] * 4), lines(tmp_path / "test.jsonl", [test] * 4)
    with pytest.raises(ConfigError, match=r"data\.test_path=.*: column x is .*, and .* in data\.path="):
        _ = Table(*paths, tokens="bytes" if train == "ab" else None).spec


@needs_pyarrow
def test_tokens_without_a_column_of_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.tokens=bytes: no input of .* is text"):
        _ = Table(lines(tmp_path / "train.jsonl", [1, 2, 3, 4, 5]), tokens="bytes").spec


@needs_pyarrow
@pytest.mark.parametrize("large", [2**53 + 1, [2**53 + 1, 0.5], 2**64 + 1])
def test_whole_numbers_of_json_that_float64_cannot_hold_are_refused(large: Any, tmp_path: Path) -> None:
    usual: Any = [1, 0.5] if isinstance(large, list) else 0.5
    data = Table(lines(tmp_path / "train.jsonl", [usual, 1e300, large] if usual == 0.5 else [usual, usual, large]))
    with pytest.raises(CorruptDataError, match=r"column x is \d+ in row 2 .*, which float64 cannot hold"):
        data.load()


@needs_pyarrow
def test_large_measurements_of_json_are_kept(tmp_path: Path) -> None:
    data = Table(lines(tmp_path / "train.jsonl", [2**53, 1e30, 2**60, 0.5, 1.5]), standardize=False)
    assert sorted(each for split, _ in of_both(data) for (each,) in split)[-1] == np.float32(1e30)


@needs_pyarrow
def test_a_list_with_a_number_beyond_int64_is_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    held = pyarrow.array([[2**63 + 5, 2]] * 5, pyarrow.list_(pyarrow.uint64()))
    pyarrow.parquet.write_table(pyarrow.table({"x": held, "target": ["a", "b", "a", "b", "a"]}), tmp_path / "x.parquet")
    with pytest.raises(SampleError, match=r"column x has 9223372036854775813; must be less than 2\^63"):
        Table(str(tmp_path / "x.parquet")).load()


@needs_pyarrow
@pytest.mark.parametrize(("train", "test"), [([1.5, 2], [3, 4]), ([1, 2], [3.0, 4.0])])
def test_whole_lists_are_whole_numbers_or_fractions_as_the_training_file_has_them(
    train: list[float], test: list[float], tmp_path: Path
) -> None:
    paths = lines(tmp_path / "train.jsonl", [train] * 4), lines(tmp_path / "test.jsonl", [test] * 4)
    data = Table(*paths, standardize=False)
    assert [inputs[0] for inputs, _ in of_both(data)] == [train, test]
    assert data.spec.input_dtype == (torch.int64 if train == [1, 2] else torch.float32)


@needs_pyarrow
def test_fractions_in_a_list_below_whole_numbers_are_named_with_their_row(tmp_path: Path) -> None:
    far = lines(tmp_path / "far.jsonl", [*([[1, 2]] * 40_000), [1, 2.5]])
    said = r"far\.jsonl: column x is 2\.5 in a list of row 40000 .*, and whole .* Choose data\.integers=false"
    with pytest.raises(CorruptDataError, match=said):
        Table(far, kind="labels", classes=2).load()
    floats = Table(far, integers=False, kind="labels", classes=2, standardize=False)
    assert any([1, 2.5] in inputs for inputs, _ in of_both(floats))


@needs_pyarrow
def test_nan_in_the_labels_of_a_test_file_is_nothing(tmp_path: Path) -> None:
    """On some processors it would be the whole number 0."""
    train, test = tmp_path / "train.parquet", tmp_path / "test.parquet"
    pq = importlib.import_module("pyarrow.parquet")
    table = importlib.import_module("pyarrow").table
    pq.write_table(table({"x": [0.5] * 9, "target": [0, 1, 2] * 3}), train)
    pq.write_table(table({"x": [0.5] * 9, "target": [0.0, 1.0, float("nan")] * 3}), test)
    with pytest.raises(CorruptDataError, match=r"test\.parquet: column target has nothing in row 2"):
        Table(str(train), test_path=str(test)).load()


@needs_pyarrow
def test_lists_of_whole_numbers_are_floats_where_no_integers_are_asked_for(tmp_path: Path) -> None:
    data = Table(lines(tmp_path / "x.jsonl", [[1, 2], [3, 4]] * 4), integers=False)
    load_checked("own", data)
    assert data.spec.input_dtype == torch.float32


@needs_pyarrow
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_key_that_first_stands_below_the_head_is_no_input_without_a_word(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "HEAD", 1 << 10)
    rows = [{"a": float(i), "target": i / 3, **({"z": 2.0} if i >= 90 else {})} for i in range(100)]
    text = "".join(json.dumps(each) + "\n" for each in rows).encode()
    path = tmp_path / f"late{suffix}"
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    said = r"late\.jsonl(\.gz)?: column z first stands in row 90 \(the first is 0\).* choose data\.inputs without it"
    for both in ((str(path), None), (lines_of(tmp_path / "few.jsonl", rows[:20]), str(path))):
        with pytest.raises(CorruptDataError, match=said):
            Table(*both).load()
    with pytest.raises(ConfigError, match=r"data\.inputs=z: the head of .*late.* \(1,024 bytes\) does not have it"):
        _ = Table(str(path), inputs=["a", "z"]).spec
    assert len(Table(str(path), inputs=["a"]).load()[0]) == 80


@needs_datasets
def test_lists_that_become_longer_further_down_are_named(tmp_path: Path) -> None:
    import datasets

    rows = [[1.0, 2.0]] * 4 + [[1.0, 2.0, 3.0]] * (N - 4)
    datasets.Dataset.from_dict({"x": rows, "label": LABELS.tolist()}).save_to_disk(str(tmp_path))
    whole = HuggingFace(str(tmp_path)).load()[0].rows(torch.arange(N))
    with pytest.raises(SampleError, match=r"train split, sample 4: x is \[3\]; must be \[2\]"):
        whole.take(slice(4, 6))


@needs_datasets
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("name", "knobs"), [("x", {}), ("targets", {}), ("targets", {"kind": "numbers"})])
def test_classes_are_compared_by_name_in_every_column_that_is_used(
    name: str, knobs: dict[str, Any], deep: bool, tmp_path: Path
) -> None:
    import datasets

    def column(names: str) -> tuple[Any, Any]:
        feature = datasets.ClassLabel(names=[*names])
        return (X % 3, datasets.List(feature)) if deep else (LABELS, feature)

    said = rf"data\.test=test: {name} numbers the classes b, a, c, and the split train numbers a, b, c\. Cast both"
    with pytest.raises(ConfigError, match=said):
        _ = saved(tmp_path, {name: column("abc")}, {name: column("bac")}, **knobs).spec
    data = saved(tmp_path / "alike", {name: column("abc")}, {name: column("abc")}, **knobs)
    assert data.spec.classes == (0 if knobs else 3)


@needs_datasets
@pytest.mark.parametrize(("key", "name"), [("train", "nosuch"), ("test", "validation")])
def test_a_split_is_not_asked_of_a_data_set_that_has_none(key: str, name: str, tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"x": X.tolist(), "label": LABELS.tolist()}).save_to_disk(str(tmp_path))
    with pytest.raises(ConfigError, match=rf"data\.{key}={name}: .* is a Dataset, which has no splits\. Leave"):
        _ = HuggingFace(str(tmp_path), **{key: name}).spec  # pyright: ignore[reportArgumentType]


@needs_datasets
def test_a_split_that_is_trained_and_tested_on_is_said(tmp_path: Path) -> None:
    path = saved(tmp_path, {}, {}).path
    data = HuggingFace(str(path), inputs="x", targets="targets", test="train")
    told = contents(data.spec, data.described()).in_words()
    assert "to test (a fifth of the split train)" in told


# -- targets


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize(("train", "test"), [("u1", "u1"), ("f8", "u1"), ("u1", "f4")])
def test_targets_that_are_numbers_keep_their_values(how: str, train: str, test: str, tmp_path: Path) -> None:
    values = 10 * np.arange(N)
    (_, one), (_, other) = of_both(
        made(how, tmp_path, {"targets": values.astype(train)}, {"targets": values.astype(test)}, kind="numbers")
    )
    assert one == other == values.tolist()


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize(
    ("value", "train", "test"),
    [(0.75, "i8", "f4"), (2 - 2**-40, "i8", "f8"), (np.nan, "f4", "f4"), (1e30, "f4", "f8"), (1.5, "?", "f2")],
)
def test_a_label_that_is_no_whole_number_is_named(
    how: str, value: float, train: str, test: str, tmp_path: Path
) -> None:
    labels = (LABELS % 2).astype(test)
    labels[4] = value
    knobs = {"kind": "labels", "classes": 3}
    data = made(how, tmp_path, {"targets": (LABELS % 2).astype(train)}, {"targets": labels}, **knobs)
    _, split = load_checked("own", data)
    assert split.take(slice(0, 4)).targets.tolist() == [0, 1, 0, 0]
    with pytest.raises(SampleError) as caught:
        split.take(torch.tensor([1, 4]))
    assert f"test split, sample 4: its label is {value}; must be a whole number" in str(caught.value)


def test_samples_that_are_read_one_by_one_are_held_to_the_same_rule() -> None:
    def one(inputs: Any, target: Any, dtype: Any = torch.float32) -> tuple[Any, int]:
        taken = Items([(inputs, target)], DataSpec((), dtype, (), 3), "mine").take(slice(None))
        assert isinstance(taken.inputs, Tensor)
        return taken.inputs[0].item(), int(taken.targets[0])

    assert one(0.5, 2.0) == (0.5, 2) and one(1, True, torch.bool) == (True, 1)
    for told, said in (
        ((0.5, 1.5), "the target is 1.5; must be a whole number"),
        ((1e39, 1), r"the input is 1e\+39, which float32 cannot hold"),
        ((2, 1, torch.bool), "the input is 2; must be true or false"),
        ((0.5, 1, torch.int64), "the input is 0.5; must be a whole number"),
        ((torch.tensor(0.5 + 1j), 1), "the input is of torch.complex64; must be a dense tensor of real numbers"),
        ((0.5, np.complex128(1)), "the target is of torch.complex128; must be a dense tensor of real"),
        ((torch.tensor(1.0).to_sparse(), 1), "the input is of torch.float32 in layout torch.sparse_coo; must be a"),
        (
            (torch.tensor(1.0, device="meta"), 1),
            r"the input is of torch.float32 \(nested or on the meta device\); must",
        ),
        ((np.ma.masked_array(0.5, True), 1), "the input has masked entries; must have a number in each"),
        ((np.uint64(2**63), 1, torch.int64), "the input is 9223372036854775808; must be less than 2"),
    ):
        with pytest.raises(SampleError, match=f"mine, sample 0: {said}"):
            one(*told)


@needs_pyarrow
def test_a_label_with_a_decimal_point_in_the_test_file_is_the_whole_number(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("x,target\n" + "".join(f"{i}.5,{10 * (i % 3)}\n" for i in range(9)))
    test.write_text("x,target\n" + "".join(f"{i}.5,{10 * (i % 3)}.0\n" for i in range(9)))
    data = Table(str(train), test_path=str(test))
    assert [targets for _, targets in of_both(data)] == [[0, 1, 2] * 3] * 2
    test.write_text(test.read_text().replace("20.0", "20.5", 1))
    with pytest.raises(CorruptDataError, match=r"test\.csv: column target is 20\.5 in row 2 .*, and 20 as int64"):
        data.load()


@needs_pyarrow
def test_a_label_of_a_table_that_is_nan_is_named_with_its_row(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    def write(name: str, labels: list[float]) -> str:
        pyarrow.parquet.write_table(pyarrow.table({"a": [1.0] * N, "target": labels}), tmp_path / name)
        return str(tmp_path / name)

    whole = [0.5, 1.5] * (N // 2)
    train, test = write("train.parquet", whole), write("test.parquet", [*whole[:3], float("nan"), *whole[4:]])
    for told in ((train, test), (test, None)):
        with pytest.raises(CorruptDataError, match=r"test\.parquet: column target has nothing in row 3 "):
            Table(*told, kind="labels").load()
    strange = write("strange.parquet", [2.5, *whole[1:]])
    with pytest.raises(
        CorruptDataError, match=r"strange\.parquet: column target is '2\.5' in row 0 .*train\.parquet does not have"
    ):
        Table(train, strange, kind="labels").load()


# -- numbers that float32 cannot hold


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize("name", ["x", "targets"])
def test_a_number_that_float32_cannot_hold_is_named_as_it_is_taken(how: str, name: str, tmp_path: Path) -> None:
    values = X.astype("f8") if name == "x" else np.arange(N) / 2
    values[7] = 1e39
    data = made(how, tmp_path, {}, {name: values}, kind="numbers")
    _, test = data.load()
    assert len(test.take(slice(0, 7)).targets) == 7
    called = "its target 'targets'" if name == "targets" else "x"
    with pytest.raises(SampleError, match=rf"test split, sample 7: {called} is 1e\+39, which float32 cannot hold"):
        test.take(torch.tensor([3, 7, 1]))


# -- weights


@pytest.mark.parametrize("how", MAKERS)
def test_weights_of_a_shape_of_their_own_are_refused_as_they_are_taken(how: str, tmp_path: Path) -> None:
    data = made(how, tmp_path, {"w": np.ones(N)}, {"w": np.ones((N, 2))}, inputs="x", weights="w")
    with pytest.raises(SampleError, match=r"test split, sample 0: its weight 'w' is \[2\]; must be one number"):
        load_checked("own", data)
    both = {"targets": X % 3, "w": np.ones((N, 2))}
    (tmp_path / "more").mkdir()
    assert len(load_checked("own", made(how, tmp_path / "more", both, both, inputs="x", weights="w"))[0]) == N
