"""Columns of a user's own table as the model gets them: whole numbers, lists and text."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.engine.planning.planned import Plan
from paceline.tasks.base import Split
from paceline.tasks.data.table import Table

HERE = "reading_columns"
SHORT = ["tracking=none", "checkpoint.every=0", "hardware=virtual", "data=table", "data.targets=kind"]


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    rows = [f"{i % 7},{i % 5 + 30},{'odd' if i % 7 > 3 else 'even'}" for i in range(60)]
    file = tmp_path / "ids.csv"
    file.write_text("\n".join(["first,street,kind", *rows]))
    return file


def planned(file: Path, *given: str) -> Plan:
    return prepare([*SHORT, f"data.path={file}", *given], allow_modules=[HERE]).plan()


def test_whole_numbers_are_integers_for_a_model_that_takes_no_floats(ids: Path, root: Path) -> None:
    own = f"model={{_target_:{HERE}.OfIds}}"
    assert planned(ids, own).contents.in_words().startswith("inputs int64 [2] (first, street); ")
    assert planned(ids, "model=linear").contents.in_words().startswith("inputs float32 [2] (first, street); ")
    given = [*SHORT, f"data.path={ids}", own, "hardware.workers=2", "epochs=60", "optimizer.lr=1", "batch_size=8"]
    result = engine.run(given, allow_modules=[HERE], root=root, quiet=True)
    assert result is not None and result.summary["accuracy"] == 1
    assert load_file(result.path / "model.safetensors")["words.weight"].shape == (40, 4)


def test_columns_that_are_said_to_be_integers_stand_beside_the_others(ids: Path) -> None:
    both = f"model={{_target_:{HERE}.OfBoth}}"
    said = planned(ids, both, "data.integers=[street]").contents.in_words()
    assert said.startswith("street int64 [], numbers float32 [1] (first); ")
    train, test = Table(str(ids), targets="kind", integers=["street"]).load()
    assert isinstance(train.inputs, dict) and isinstance(test, Split)
    assert train.inputs["street"].dtype == torch.int64 and set(train.inputs["street"].tolist()) <= set(range(30, 35))
    assert train.inputs["numbers"].mean().abs() < 1e-6 and len(test) == 12
    with pytest.raises(ConfigError, match=r"does not take a batch of data=table, torch.float32 \[32, 2\]"):
        planned(ids, f"model={{_target_:{HERE}.OfIds}}", "data.integers=false")


@pytest.mark.parametrize(
    ("integers", "said"),
    [
        ("[width]", "data.integers: width is no input of"),
        ("[first]", "data.integers: column first of .* is double; must be whole numbers"),
    ],
)
def test_what_cannot_be_integers_is_refused_by_name(ids: Path, integers: str, said: str) -> None:
    ids.write_text(ids.read_text().replace("\n0,", "\n0.5,"))
    with pytest.raises(ConfigError, match=said):
        planned(ids, "model=linear", f"data.integers={integers}")


def test_fractions_further_down_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "late.csv"
    file.write_text("\n".join(["a,kind", *["1,x", "2,y"] * 150_000, "1.5,x"]))
    with pytest.raises(ConfigError, match=r"data.integers: column a of .* is double"):
        Table(str(file), targets="kind", integers=True).load()
