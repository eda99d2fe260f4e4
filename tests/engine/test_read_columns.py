"""Columns of a user's own table as the model gets them: whole numbers, lists and text."""

import base64
import gzip
import json
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.engine.planning.planned import Plan
from paceline.tasks.base import Split
from paceline.tasks.data.table import Table
from paceline.tasks.errors import CorruptDataError

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


# -- JSON lines, lists and text

ROWS: list[dict[str, Any]] = [
    {"ids": [i % 7, i % 5], "x": [i / 7, -i], "say": f"{'ja' if i % 2 else 'nö'} {i}", "kind": i % 2} for i in range(20)
]


def loaded(file: Path, **knobs: Any) -> tuple[Any, Any]:
    data = Table(str(file), targets="kind", **knobs)
    train, _ = data.load()
    assert not isinstance(train.inputs, dict) or list(train.inputs) == list(data.spec.fields)
    return data.spec, train


@pytest.mark.parametrize("name", ["rows.jsonl", "ROWS.JSONL", "rows.jsonl.gz", "rows.ndjson", "rows.parquet"])
def test_lists_are_inputs_of_their_own(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), file)
    else:
        text = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
        file.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    spec, train = loaded(file, inputs=["ids", "x"])
    assert [(key, each.shape, each.dtype) for key, each in spec.fields.items()] == [
        ("ids", (2,), torch.int64),
        ("x", (2,), torch.float32),
    ]
    order = (-train.inputs["x"][:, 1]).argsort()  # standardised, but in the order of the rows
    numbers = torch.arange(20)[torch.isin(torch.arange(20), torch.tensor(kept(20)))]
    assert torch.equal(train.inputs["ids"][order], torch.stack([numbers % 7, numbers % 5], dim=1))
    assert torch.equal(train.targets[order], numbers % 2)
    spec, train = loaded(file, inputs="ids")
    assert spec.inputs is None and spec.input_shape == (2,) and train.inputs.dtype == torch.int64


def kept(size: int) -> list[int]:
    """The rows to train on."""
    from paceline.tasks.data.parts import fifth

    return sorted(fifth(size, "")[0].tolist())


def test_text_is_read_as_bytes_and_filled_up(tmp_path: Path) -> None:
    file = tmp_path / "said.CSV"
    file.write_text("say,kind\n" + "".join(f"{row['say']},{row['kind']}\n" for row in ROWS))
    spec, train = loaded(file, tokens="bytes", length=6)
    assert (spec.input_shape, spec.input_dtype) == ((6,), torch.int64)
    texts = {bytes(row).rstrip(b"\0").decode(errors="replace") for row in train.inputs.tolist()}
    assert texts == {ROWS[i]["say"].encode()[:6].decode() for i in kept(20)}
    with pytest.raises(ConfigError, match=r"column say .* is string; must be numbers\..* data.tokens=bytes reads text"):
        loaded(file)


class Words:
    """Stands in for the class of the package tokenizers, which need not be here: a file has the state of its parts."""

    padding = None

    @staticmethod
    def from_file(path: str) -> "Words":
        return Words(json.loads(Path(path).read_text()))

    def __init__(self, parts: dict[str, Any]) -> None:
        for name in ("normalizer", "pre_tokenizer", "post_processor"):
            text = json.dumps(parts.get(name)).encode()
            setattr(self, name, SimpleNamespace(__getstate__=lambda text=text: text) if name in parts else None)
        self.lacks, self.ends = parts.get("lacks"), [9] * parts.get("ends", 1)

    def token_to_id(self, token: str) -> int | None:
        return {"[PAD]": 3}.get(token)

    def no_padding(self) -> None: ...
    def enable_truncation(self, length: int) -> None:
        self.most = length

    def encode_batch(self, texts: list[str]) -> list[SimpleNamespace]:
        if self.lacks == "panic":
            raise PanicException("index out of bounds")
        if self.lacks:
            raise Exception("Missing [UNK] token")  # as the package does
        return [SimpleNamespace(ids=[len(word) for word in text.split()][: self.most] + self.ends) for text in texts]


class PanicException(BaseException):
    """Stands in for the error that a panic of Rust becomes."""


def tokenized(folder: Path, monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any]) -> Any:
    """Returns the inputs of `ROWS`, by a tokenizer.json with `parts`."""
    file, tokens = folder / "said.jsonl", folder / "tokenizer.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    tokens.write_text(json.dumps(parts))
    monkeypatch.setattr("paceline.tasks.data.sequences.folder_of", lambda package: "here")
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Words))  # pyright: ignore
    return loaded(file, inputs="say", tokens=str(tokens), length=4)[1].inputs.tolist()


def test_text_is_read_by_a_file_of_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {tuple(row) for row in tokenized(tmp_path, monkeypatch, {})} == {(2, 1, 9, 3), (2, 2, 9, 3)}
    assert {tuple(row) for row in tokenized(tmp_path, monkeypatch, {"ends": 5})} == {(2, 1, 9, 9), (2, 2, 9, 9)}
    file, tokens = tmp_path / "said.jsonl", tmp_path / "tokenizer.json"
    knobs: dict[str, Any] = {"inputs": "say", "tokens": str(tokens), "length": 4}
    monkeypatch.setattr("paceline.tasks.data.sequences.folder_of", lambda package: None)
    with pytest.raises(Exception, match="pip install tokenizers"):
        loaded(file, **knobs)
    tokens.unlink()
    with pytest.raises(Exception, match="is not a file"):
        loaded(file, **knobs)


def replace(old: str, new: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


CHARSMAP = base64.b64encode(struct.pack("<I", 4) + bytes(4) + b"a\0" + "é".encode() * 18 + b"\0").decode()
PRECOMPILED = {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}
TOKEN = {"SpecialToken": {"id": "[X]", "type_id": 0}}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}


def template(pieces: list[Any], size: int) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": pieces, "special_tokens": {"[X]": {"ids": [1] * size}}}


@pytest.mark.parametrize(
    ("part", "steps", "times"),
    [
        ("normalizer", [replace("o", "o" * 20)] * 3, "8,000"),
        ("normalizer", [replace("oo", "o" * 40)] * 3, "8,000"),
        ("normalizer", [replace("", "o")] * 9, "512"),
        ("normalizer", [replace("(?=)", "oo", "Regex")] * 6, "729"),
        ("normalizer", [{"type": "Prepend", "prepend": "o" * 19}] * 2, "400"),
        ("normalizer", [PRECOMPILED, PRECOMPILED], "324"),
        ("pre_tokenizer", [{"type": "ByteLevel"}] * 9, "512"),
        ("post_processor", [template([TEXT, TOKEN, TOKEN], 200)], "401"),
    ],
)
def test_a_tokenizer_that_makes_texts_longer_and_longer_is_refused(
    part: str, steps: list[Any], times: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}.get(part, "processors")
    with pytest.raises(CorruptDataError, match=rf"tokenizer\.json: may make a text {times} times as long"):
        tokenized(tmp_path, monkeypatch, {part: {"type": "Sequence", name: steps}})


def test_usual_tokenizers_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [{"type": "NFKC"}, PRECOMPILED, replace(" {2,}", "_", "Regex"), replace("``", '"')]
    ends = template([TOKEN, TEXT, TOKEN], 1)
    parts = {"normalizer": {"type": "Sequence", "normalizers": steps}, "post_processor": ends}
    assert len(tokenized(tmp_path, monkeypatch, parts)) == 16


@pytest.mark.parametrize(("lacks", "said"), [("unk", r"Missing \[UNK\]"), ("panic", "index out of bounds")])
def test_a_tokenizer_that_fails_on_a_text_is_named(
    lacks: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CorruptDataError, match=rf"data\.tokens=.*/tokenizer\.json: fails on a text: {said}"):
        tokenized(tmp_path, monkeypatch, {"lacks": lacks})


def test_lists_are_cut_and_filled_where_a_length_is_said(tmp_path: Path) -> None:
    file = tmp_path / "ragged.jsonl"
    file.write_text("".join(json.dumps({"ids": list(range(1, 2 + i % 4)), "kind": i % 2}) + "\n" for i in range(20)))
    with pytest.raises(Exception, match=r"lists of 1 and, in row 1 .*, of 2 entries. data.length=N cuts"):
        loaded(file)
    spec, train = loaded(file, length=3)
    assert spec.input_shape == (3,)
    assert {tuple(row) for row in train.inputs.tolist()} == {(1, 0, 0), (1, 2, 0), (1, 2, 3)}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"ids": [1, null], "kind": 1}', "has nothing in the list of row 2"),
        ('{"ids": null, "kind": 1}', "column ids has nothing in row 2"),
        ('{"kind": 1}', "column ids has nothing in row 2"),
        ('{"ids": [1, 2]}', r"column kind has nothing in row 2 \(the first is 0\)"),
        ('{"ids": [1, 2], "kind"', "cannot be read"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_damaged_rows_are_told(row: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = ['{"ids": [1, 2], "kind": 0}', '{"ids": [3, 4], "kind": 1}', row]
    file.write_text("\n".join([*rows, *rows[:2] * 4]))
    with pytest.raises(Exception, match=said) as caught:
        loaded(file)
    assert getattr(caught.value, "exit_code", None) in (2, 7)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rows.npz", "Choose data=arrays for .npz, .npy and .safetensors"),
        ("rows.parquet.gz", "must be .csv, .tsv, .jsonl, .ndjson"),
        ("rows.csv.gz", "is damaged: Not a gzipped file"),
    ],
)
def test_other_files_are_refused_with_what_reads_them(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a,kind\n1,2\n")
    with pytest.raises(Exception, match=said):
        loaded(tmp_path / name)


def test_a_list_of_numbers_in_quotes_is_refused_with_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"ids": ["1", "2"], "kind": 1}\n' * 10)
    with pytest.raises(ConfigError, match=r"must be numbers\. Write the numbers of a list without quotes"):
        loaded(file)


@pytest.mark.parametrize("name", ["x.jsonl", "x.ndjson", "x.jsonl.gz"])
@pytest.mark.parametrize("head", ['{"ids": ', '{"say": "]]\\\\", "ids": \n'])  # brackets within quotes close nothing
def test_rows_nested_deeply_are_refused_before_pyarrow_ends_the_process(head: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    text = f"{head}{'[' * 64}{']' * 64}}}".encode()
    file.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    with pytest.raises(CorruptDataError, match="cannot be read: rows are nested more than 64 deep") as caught:
        loaded(file)
    assert caught.value.exit_code == 7


def test_brackets_within_quotes_and_of_many_rows_are_not_nested(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    row = {"say": "[" * 70 + '"[\\' + "{" * 70, "ids": [1, 2], "kind": 1}
    file.write_text(f"{json.dumps(row)}\n" * 6000)  # more than one block
    assert loaded(file, inputs="ids")[0].input_shape == (2,)
    file.write_text(f'{{"ids": {"[" * 63}{"]" * 63}, "kind": 1}}')
    with pytest.raises(ConfigError, match=r"must be numbers\. data=hugging_face reads nested lists") as caught:
        loaded(file)
    assert len(str(caught.value)) < 300


def test_nested_lists_are_for_hugging_face(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": [[1]], "b": [1], "kind": 1}\n' * 10)
    with pytest.raises(ConfigError, match=r"or left out: 'data.inputs=\[b\]'. data=hugging_face reads nested lists"):
        loaded(file)
