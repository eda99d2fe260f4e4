"""The line that says what was read: inputs, samples and classes, of all kinds of data, before a run and in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import needs_datasets, needs_pyarrow

from paceline import engine
from paceline.tasks.base import Data, DataSpec, Described, Field
from paceline.tasks.contents import contents, notes_on
from paceline.tasks.data.arrays import Arrays
from paceline.tasks.data.digits import Digits
from paceline.tasks.data.hugging_face import HuggingFace
from paceline.tasks.data.images import Images
from paceline.tasks.data.svmlight import SVMLight
from paceline.tasks.data.table import Table
from paceline.tasks.data.text import Text
from paceline.tracking.run_directory import RunDirectory

N = 20


def line(data: Data, loaded: bool = False) -> str:
    sizes = [len(split) for split in data.load()] if loaded else [None, None]
    return contents(data.spec, data.described(), *sizes).in_words()


def notes(data: Data) -> list[str]:
    return notes_on(data.spec, data.described())


def csv(path: Path, header: str, row: str, last: str = "") -> str:
    rows = [row.format(i=i, odd=("no", "yes")[i % 2]) for i in range(N)]
    path.write_text("\n".join([header, *rows, *([last] if last else [])]) + "\n")
    return str(path)


@needs_pyarrow
def test_a_table_says_its_columns_and_classes(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "a,b,kind", "{i},1,{odd}")
    said = "inputs float32 [2] (a, b); 16 samples to train, 4 to test; kind: 2 classes (no, yes)"
    assert line(Table(path, targets="kind")) == said == line(Table(path, targets="kind"), loaded=True)
    head = Table(path, targets="kind", classes=2)
    assert line(head) == "inputs float32 [2] (a, b); samples are counted when they are read; kind: 2 classes"
    assert line(head, loaded=True) == said
    assert line(Table(path, path, "a", "kind")).endswith(
        "20 samples to train, test samples are counted when they are read; kind: 2 classes (no, yes)"
    )
    path = csv(tmp_path / "y.csv", "a,b,kind", "{i},1,2")
    numbers = Table(path, inputs="kind", targets=["b", "a"], kind="numbers", limit=3)
    assert line(numbers, loaded=True) == "kind float32 [1]; 3 samples to train, 4 to test; b, a: numbers [2]"


@needs_pyarrow
@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        (",b,target", "{i},1,{odd}", "the column '' looks like the index of a table"),
        ("__index_level_0__,b,target", "{i},1,{odd}", "the column '__index_level_0__' looks like the index"),
        ("Unnamed: 0,b,target", "{i},1,{odd}", "the column 'Unnamed: 0' looks like the index of a table"),
        ("a,b,target", "{i},1,yes", "all samples are of one class, yes, so that there is nothing to learn"),
        ("a,b,target", "{i},1,{i}", "20 classes in 16 training labels are fewer than two labels each"),
        ("a,b,target", "{i},1,yes\n1,1, Yes", "the classes ' Yes' and 'yes' differ by case, white space or the"),
        ("a,b,target", "{i},1,caf\u00e9\n1,1,cafe\u0301", "differ by case, white space or the form of Unicode alone"),
        ("a,b,target", "{i},1,1\n{i},1,-100", "-100 is one of the classes, and is learnt like any other"),
        ("a,b,target", "{i},1,{odd}", None),
    ],
)
def test_what_one_would_ask_about_is_a_note(header: str, row: str, said: str | None, tmp_path: Path) -> None:
    found = notes(Table(csv(tmp_path / "x.csv", header, row)))
    assert len(found) == (said is not None) and (said is None or said in found[0])


def test_arrays_say_their_names_types_and_shapes(tmp_path: Path) -> None:
    x, street = np.zeros((N, 3)), np.zeros(N, dtype=np.int32)
    np.savez(tmp_path / "x.npz", x=x, street=street, targets=np.arange(N) % 4, price=x)
    path = str(tmp_path / "x.npz")
    samples = "16 samples to train, 4 to test"
    assert (
        line(Arrays(path, inputs=["x", "street"])) == f"x float32 [3], street int64 []; {samples}; targets: 4 classes"
    )
    assert line(Arrays(path, inputs="x", targets="price")) == f"x float32 [3]; {samples}; price: numbers [3]"
    assert "all samples are of one class" in notes(Arrays(path, inputs="x", targets="street"))[0]
    assert notes(Arrays(path, inputs="x")) == []
    tokens = np.arange(N * 8).reshape(N, 8) % 10
    np.savez(tmp_path / "tokens.npz", inputs=tokens, targets=tokens)
    assert notes(Arrays(str(tmp_path / "tokens.npz"))) == []


@needs_datasets
def test_a_saved_data_set_says_the_names_of_its_classes(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = {"x": [0.5] * N, "label": [0, 1] * (N // 2)}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    said = "x float32 []; 16 samples to train, 4 to test; label: 2 classes (no, yes)"
    assert line(HuggingFace(str(tmp_path / "saved"))) == said


def test_a_folder_of_images_says_its_folders(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("cat", "dog", "cow", "ant", "bee", "fox"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 3)).save(tmp_path / name / "0.png")
    said = "inputs float32 [3, 3, 4]; 5 samples to train, 1 to test; 6 classes (ant, bee, cat, cow, dog, and 1 more)"
    assert line(Images(str(tmp_path))) == said
    for name in ("README", "ant/notes.txt", "ant/Thumbs.db", ".hidden"):
        (tmp_path / name).touch()
    assert line(Images(str(tmp_path))) == f"{said}; not read: README, ant/Thumbs.db, ant/notes.txt"


def test_what_is_shipped_and_what_is_sparse_is_said(tmp_path: Path) -> None:
    assert "bytes int64 [64]; " in line(Text()) and line(Text()).endswith("the next byte: 256 classes for each of [64]")
    assert line(Digits()) == "inputs float32 [1, 8, 8]; 1,437 samples to train, 360 to test; 10 classes"
    (tmp_path / "x.svm").write_text("-1 1:1\n+1 2:1\n" * 5)
    data = SVMLight(str(tmp_path / "x.svm"), features=1000, nonzeros=4)
    features = "1,000 sparse features, at most 4 a sample"
    assert line(data) == f"{features}; samples are counted when they are read; 2 classes"
    assert line(data, loaded=True) == f"{features}; 8 samples to train, 2 to test; 2 classes (-1, 1)"


def test_nothing_of_a_name_reaches_a_terminal_as_a_command() -> None:
    spec = DataSpec(input_shape=(2,), classes=3)
    told = contents(spec, Described(("\x1b[2J", "b" * 99), ("\u202e",), ("", "\n", "c"))).plain()
    assert told["in_words"].isprintable() and len(told["columns"][1]) == 40 and told["class_names"][0] == "''"
    fields = {"a\x07": Field((2,)), "b": Field((), torch.int64)}
    assert contents(DataSpec(inputs=fields, classes=2), Described()).in_words().isprintable()


def test_a_plan_and_the_record_of_a_run_have_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared = engine.prepare(["hardware=virtual", "data.limit=64", "steps=1", "tracking=none"])
    plan = prepared.plan()
    told: dict[str, Any] = plan.as_dict()["contents"]
    assert told["train"] == 64 and told["inputs"] == {"inputs": "float32 [1, 8, 8]"} and told["classes"] == 10
    result = engine.run(prepared, root=tmp_path)
    assert result is not None
    start = next(record for record in RunDirectory(result.path).records() if record["kind"] == "start")
    assert start["contents"] == told
    assert f"data: {told['in_words']}\n" in capsys.readouterr().err
