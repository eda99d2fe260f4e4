"""Targets: a missing label is missing, types are those of whole columns, and no input is the answer."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import needs_datasets, needs_pyarrow

from paceline.conf.errors import ConfigError
from paceline.tasks.base import Data
from paceline.tasks.checks import check_spec, load_checked
from paceline.tasks.data import table
from paceline.tasks.data.arrays import Arrays
from paceline.tasks.data.hugging_face import HuggingFace
from paceline.tasks.data.table import Table
from paceline.tasks.errors import CorruptDataError, SampleError


def text(path: Path, rows: list[str], header: str = "a,target") -> str:
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


@needs_pyarrow
@pytest.mark.parametrize("cell", ["", "NA", '""', "  ", "null", "nan"])
def test_an_empty_label_is_no_class(cell: str, tmp_path: Path) -> None:
    path = text(tmp_path / "x.csv", ["1,yes", "2,no", f"3,{cell}"] * 4)
    with pytest.raises(CorruptDataError, match="column target has nothing in row 2"):
        Table(path).load()


@needs_pyarrow
def test_a_class_of_the_name_na_is_written_in_quotes(tmp_path: Path) -> None:
    path = text(tmp_path / "x.csv", ['1,"NA"', "2,DE", '3,"SA"'] * 4)
    assert Table(path).spec.classes == 3


@needs_pyarrow
def test_the_type_of_the_targets_is_that_of_the_whole_column(tmp_path: Path) -> None:
    """The first 1 MiB of the file has whole prices."""
    rows = [f"{i}.25,{i}" for i in range(80_000)] + ["0.5,1.5"] * 100
    path = text(tmp_path / "x.csv", rows)
    spec = Table(path).spec
    assert spec.targets == "numbers" and spec.train_size == len(rows) - len(rows) // 5
    with pytest.raises(ConfigError, match=r"begins with whole numbers and has fractions further down"):
        Table(path, classes=90_000).load()
    with pytest.raises(ConfigError, match=r"column target is string \('many' in row 80000, from 0 on\)"):
        Table(text(tmp_path / "y.csv", [*rows[:80_000], "0.5,many"]), kind="numbers").load()


@needs_pyarrow
@pytest.mark.parametrize(
    ("first", "second", "kind", "type_"),
    [("01", "1", None, "int64"), ("0x10", "16", None, "int64"), ("1e3", "1000", "labels", "double")],
)
def test_labels_that_are_written_in_two_ways_are_refused(
    first: str, second: str, kind: Any, type_: str, tmp_path: Path
) -> None:
    path = text(tmp_path / "x.csv", [f"1,{first}", f"2,{second}", "3,5"] * 4)
    with pytest.raises(CorruptDataError, match=f"'{first}' and '{second}', which are the same {type_}"):
        _ = Table(path, kind=kind).spec
    good = text(tmp_path / "y.csv", [f"1,{first}", "2, 5", "3,5"] * 4)
    assert Table(good, kind=kind).spec.classes == 2
    with pytest.raises(CorruptDataError, match=f"x.csv: .*'{first}' and '{second}', which are the same {type_}"):
        Table(good, path, kind=kind).load()


@needs_pyarrow
def test_an_empty_line_of_one_column_is_an_empty_cell(tmp_path: Path) -> None:
    path = text(tmp_path / "x.csv", ["1e3", f"{2**53}.0", "", "3"] * 3, header="a")
    with pytest.raises(CorruptDataError, match="column a has nothing in row 2"):
        Table(path, inputs="a", targets="a", kind="numbers").load()
    path = text(tmp_path / "y.csv", ["1,yes", "", "2,no"] * 4)
    assert sum(map(len, Table(path).load())) == 8


@needs_pyarrow
def test_a_label_that_is_nan_is_an_empty_one(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {"a": [1.0] * 8, "target": [0.0, 1.0, float("nan"), 1.0] * 2}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    with pytest.raises(CorruptDataError, match="column target has nothing in row 2"):
        _ = Table(str(tmp_path / "x.parquet"), kind="labels").spec


@needs_pyarrow
def test_a_negative_weight_is_named_by_its_file_and_row(tmp_path: Path) -> None:
    path = text(tmp_path / "x.csv", ["1,yes,0.5", "2,no,0"] * 3 + ["3,no,-1"], "a,target,w")
    with pytest.raises(CorruptDataError, match=r"x\.csv: column w is -1 in row 6 .*must be 0 or more"):
        Table(path, weights="w").load()


@needs_pyarrow
@pytest.mark.parametrize("size", [1, 4])
def test_too_few_rows_are_refused_before_a_run(size: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"of {size} samples, a fifth for test is none"):
        check_spec("table", Table(text(tmp_path / "x.csv", ["1,yes"] * size)).spec)
    np.savez(tmp_path / "x.npz", a=np.zeros(size), targets=np.zeros(size, dtype=int))
    with pytest.raises(ConfigError, match=f"of {size} samples, a fifth for test is none"):
        check_spec("arrays", Arrays(str(tmp_path / "x.npz")).spec)


@needs_pyarrow
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_a_test_table_without_rows_is_refused_before_a_run(suffix: str, kind: Any, tmp_path: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    train, test = text(tmp_path / "x.csv", ["1,0", "2,1"] * 8), tmp_path / f"y.{suffix}"
    table = pyarrow.csv.read_csv(train).slice(0, 0)
    (pyarrow.csv.write_csv if suffix == "csv" else pyarrow.parquet.write_table)(table, str(test))
    with pytest.raises(ConfigError, match=f"{test} has no rows"):
        check_spec("table", Table(train, str(test), kind=kind).spec)


def the_same(kind: str, folder: Path) -> Any:
    """A data set of the numbers a and target, as (inputs, targets, weights) -> Data."""
    columns = {"a": np.arange(10.0), "target": np.arange(10) % 2}
    if kind == "table":
        path = text(folder / "x.csv", [f"{a},{b}" for a, b in zip(*columns.values(), strict=True)])
        return lambda **knobs: Table(path, **{"targets": "target", **knobs})
    if kind == "arrays":
        np.savez(folder / "x.npz", **columns)  # pyright: ignore[reportArgumentType]
        return lambda **knobs: Arrays(str(folder / "x.npz"), **{"targets": "target", **knobs})
    import datasets

    datasets.Dataset.from_dict(columns).save_to_disk(str(folder / "x"))
    return lambda **knobs: HuggingFace(str(folder / "x"), **{"targets": "target", **knobs})


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("table", marks=needs_pyarrow),
        "arrays",
        pytest.param("hugging_face", marks=needs_datasets),
    ],
)
def test_a_target_among_the_inputs_is_refused_unless_it_is_all_of_them(kind: str, tmp_path: Path) -> None:
    make = the_same(kind, tmp_path)
    said = r"data\.inputs=\[a,target\]: target is a target, .* Choose 'data\.inputs=\[a\]'\."
    with pytest.raises(ConfigError, match=said):
        _ = make(inputs=["a", "target"]).spec
    with pytest.raises(ConfigError, match=r"names 'a' 2 times"):
        _ = make(inputs=["a", "a"]).spec
    copied: Data = make(inputs=["a"], targets="a", kind="numbers")
    taken = load_checked(kind, copied)[0].take(slice(None))
    assert taken.inputs.flatten().tolist() == taken.targets.tolist()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(make(inputs=["a"], weights="a").load()[0]) == 8


@pytest.mark.parametrize("classes", [None, 3])
def test_a_label_by_which_torch_leaves_out_targets_is_told_of_masks(classes: int | None, tmp_path: Path) -> None:
    labels = np.arange(20).reshape(10, 2) % 2
    labels[7, 1] = -100
    np.savez(tmp_path / "x.npz", a=np.zeros((10, 2)), targets=labels)
    said = r"sample 7: its label is -100, by which torch leaves out targets\. Choose task\.ignore_index=-100 of task=w"
    with pytest.raises(SampleError, match=said):
        for split in Arrays(str(tmp_path / "x.npz"), classes=classes).load():
            split.take(slice(None))


def test_one_huge_label_makes_no_huge_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(10), targets=[*range(9), 2**40])
    with pytest.raises(ConfigError, match=r"the largest label of .* is 1,099,511,627,776, .* set data\.classes"):
        _ = Arrays(str(tmp_path / "x.npz")).spec


# -- saved data sets


def saved(folder: Path, features: Any = None, **columns: Any) -> str:
    import datasets

    columns = {"x": [[1.0, 2.0]] * 6, "label": [0, 1] * 3, **columns}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(folder / "saved"))
    return str(folder / "saved")


@needs_datasets
@pytest.mark.parametrize(
    ("column", "knobs"),
    [
        ({"label": [0, None, 1, 0, 1, 0]}, {}),
        ({"label": [None, 1, 1, 0, 1, 0]}, {}),
        ({"x": [[1.0, 2.0], [1.0, None], *[[0.0, 0.0]] * 4]}, {}),
        ({"x": [[1.0, 2.0], None, *[[0.0, 0.0]] * 4]}, {}),
        ({"w": [1.0, None, 1.0, 1.0, 1.0, 1.0]}, {"inputs": "x", "weights": "w"}),
    ],
)
def test_an_empty_cell_of_a_saved_data_set_is_named(
    column: dict[str, Any], knobs: dict[str, Any], tmp_path: Path
) -> None:
    row = next(i for i, value in enumerate(next(iter(column.values()))) if value is None or value == [1.0, None])
    data = HuggingFace(saved(tmp_path, **column), **knobs)
    with pytest.raises(SampleError, match=f"column {next(iter(column))} has nothing in sample {row}"):
        for split in data.load():
            split.take(slice(None))


@needs_datasets
def test_a_saved_data_set_or_split_without_samples_is_named(tmp_path: Path) -> None:
    import datasets

    some = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 6, "label": [0, 1] * 3})
    some.select([]).save_to_disk(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=f"^{tmp_path}/none has no samples. Save a data set"):
        _ = HuggingFace(str(tmp_path / "none")).spec
    datasets.DatasetDict({"train": some, "test": some.select([])}).save_to_disk(str(tmp_path / "split"))
    with pytest.raises(ConfigError, match=f"^{tmp_path}/split/test has no samples. Save a data set"):
        _ = HuggingFace(str(tmp_path / "split")).spec
    datasets.DatasetDict().save_to_disk(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"^data\.train=train: .*nothing does not have it\. It has nothing$"):
        _ = HuggingFace(str(tmp_path / "nothing")).spec


@needs_datasets
def test_too_few_samples_for_a_fifth_are_told_how_this_choice_names_a_test_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"of 4 samples, a fifth for test is none\. Save a DatasetDict with a split"):
        _ = HuggingFace(saved(tmp_path, x=[[1.0, 2.0]] * 4, label=[0, 1] * 2)).spec


@needs_datasets
def test_columns_of_a_saved_data_set_keep_their_shapes(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {
            "x": datasets.Array2D((2, 3), "float64"),
            "fixed": datasets.List(datasets.Value("int16"), 2),
            "deep": datasets.List(datasets.List(datasets.Value("bool"))),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    x = np.arange(36.0).reshape(6, 2, 3)
    columns = {"x": x.tolist(), "fixed": [[i, -i] for i in range(6)], "deep": [[[True], [i > 2]] for i in range(6)]}
    train, test = HuggingFace(saved(tmp_path, features, **columns)).load()
    rows = train.take(slice(0, 2))
    whole = [*train.take(slice(None)).inputs.tensors["x"], *test.take(slice(None)).inputs.tensors["x"]]  # pyright: ignore
    assert sorted(each.flatten().tolist() for each in whole) == x.reshape(6, -1).tolist()
    found = {name: (tuple(each.shape), each.dtype) for name, each in rows.inputs.tensors.items()}  # pyright: ignore
    assert found == {
        "x": ((2, 2, 3), torch.float32),
        "fixed": ((2, 2), torch.int64),
        "deep": ((2, 2, 1), torch.bool),
    }
    none = train.take(torch.tensor([], dtype=torch.int64)).inputs.tensors["x"]  # pyright: ignore
    assert none.shape == (0, 2, 3)


@needs_pyarrow
@pytest.mark.parametrize("of", [Table, Arrays])
def test_weights_that_are_the_targets_are_refused(of: Any, tmp_path: Path) -> None:
    """Samples of class 0 would not count."""
    path = text(tmp_path / "x.csv", ["1,0", "2,1"] * 9)
    if of is Arrays:
        path = str(tmp_path / "x.npz")
        np.savez(path, a=np.ones(9), target=np.arange(9.0))
    with pytest.raises(ConfigError, match=r"data\.weights=target: is a target, too"):
        _ = of(path, targets="target", weights="target").spec


@needs_pyarrow
def test_classes_are_counted_in_a_packed_table_as_in_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MOST_COUNTED", 99)
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"a,target\n" + b"1,yes\n2,no\n" * 99))
    assert path.stat().st_size < table.MOST_COUNTED
    with pytest.raises(ConfigError, match="too large to count"):
        _ = Table(str(path)).spec
