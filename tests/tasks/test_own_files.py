"""Tables, folders of images and saved data sets of a person's own, against what was written to them."""

import gzip
import json
import os
import struct
import zlib
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import needs_datasets, needs_pyarrow
from torch import Tensor

from paceline import engine
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.tasks.base import Data, Split
from paceline.tasks.checks import load_checked
from paceline.tasks.contents import notes_on
from paceline.tasks.data import images
from paceline.tasks.data.arrays import Arrays
from paceline.tasks.data.fashion_mnist import FashionMNIST
from paceline.tasks.data.hugging_face import HuggingFace
from paceline.tasks.data.images import Images, _opened
from paceline.tasks.data.svmlight import SVMLight
from paceline.tasks.data.table import Table
from paceline.tasks.data.text import Text
from paceline.tasks.errors import CorruptDataError, MissingDataError, SampleError

N = 25
RNG = np.random.default_rng(0)
COLUMNS = {
    "width": RNG.normal(5, 2, N),
    "rooms": RNG.integers(1, 9, N),
    "garden": np.arange(N) % 2 == 0,
    "price": RNG.normal(100, 30, N),
    "area": RNG.normal(size=N),
    "kind": np.array(["flat", "house", "castle"])[np.arange(N) % 3],
    "trust": RNG.random(N),
}


def table(folder: Path, suffix: str = ".csv", **changed: Any) -> Path:
    columns = {**COLUMNS, **changed}
    path = folder / f"houses{suffix}"
    if suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(dict(columns)), path)
        return path
    mark = "\t" if suffix == ".tsv" else ","
    rows = [mark.join(columns), *(mark.join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


def values_of(*splits: Split) -> tuple[np.ndarray, np.ndarray]:
    inputs = torch.cat([split.inputs for split in splits if isinstance(split.inputs, Tensor)])
    return inputs.numpy(), torch.cat([split.targets for split in splits]).numpy()


INPUTS = ["width", "rooms", "garden"]


@needs_pyarrow
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_column_of_text_is_labels_and_columns_are_inputs(suffix: str, tmp_path: Path) -> None:
    data = Table(str(table(tmp_path, suffix)), None, INPUTS, "kind", "trust", standardize=False)
    train, test = load_checked("table", data)
    assert isinstance(train, Split) and isinstance(test, Split) and (len(train), len(test)) == (20, 5)
    assert data.spec.classes == 3 and train.weights is not None
    inputs, labels = values_of(train, test)
    rows = [int(np.argmin(abs(COLUMNS["width"] - width))) for width in inputs[:, 0]]
    assert sorted(rows) == list(range(N))
    np.testing.assert_allclose(inputs[:, 1], COLUMNS["rooms"][rows])
    np.testing.assert_allclose(inputs[:, 2], COLUMNS["garden"][rows])
    assert [["castle", "flat", "house"][label] for label in labels] == COLUMNS["kind"][rows].tolist()
    np.testing.assert_allclose(train.weights.numpy(), COLUMNS["trust"][rows[:20]], rtol=1e-6)


@needs_pyarrow
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_labels_that_look_like_dates_are_text(suffix: str, tmp_path: Path) -> None:
    """The first two are one moment."""
    kinds = 4 * ["2024-01-02 00:00:00", "2024-01-02T00:00:00", "2024-01-03 10:00:00"]
    rows = [{"x": float(i), "day": "2024-01-02", "kind": kind} for i, kind in enumerate(kinds)]
    lines = ["x,day,kind", *(f"{row['x']},{row['day']},{row['kind']}" for row in rows)]
    path = tmp_path / f"dates{suffix}"
    path.write_text("\n".join(lines if suffix == ".csv" else map(json.dumps, rows)) + "\n")
    data = Table(str(path), None, ["x"], "kind", standardize=False)
    train, test = load_checked("table", data)
    assert isinstance(train, Split) and isinstance(test, Split)
    inputs, labels = values_of(train, test)
    assert data.spec.classes == 3
    assert [sorted(kinds)[4 * label] for label in labels] == [kinds[int(x)] for x in inputs[:, 0]]


@needs_pyarrow
def test_labels_may_be_times_with_nanoseconds(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    times = pa.array([1, 2] * 6, pa.time64("ns"))
    pq.write_table(pa.table({"x": [float(i) for i in range(12)], "kind": times}), path := tmp_path / "times.parquet")
    train, test = load_checked("table", data := Table(str(path), None, ["x"], "kind", standardize=False))
    assert isinstance(train, Split) and isinstance(test, Split)
    inputs, labels = values_of(train, test)
    assert data.spec.classes == 2 and labels.tolist() == [int(x) % 2 for x in inputs[:, 0]]


@needs_pyarrow
def test_columns_of_numbers_are_standardised_by_the_training_rows(tmp_path: Path) -> None:
    path = str(table(tmp_path))
    data = Table(path, inputs=[*INPUTS, "trust"], targets=["price", "area"], limit=10)
    train, test = load_checked("table", data)
    assert isinstance(train, Split) and isinstance(test, Split)
    assert data.spec.target_shape == (2,) and data.spec.targets == "numbers" and len(train) == 10
    for values in (train.inputs, train.targets):
        assert isinstance(values, Tensor)
        torch.testing.assert_close(values.mean(0), torch.zeros(values.shape[1]), atol=1e-6, rtol=0)
        torch.testing.assert_close(values.std(0, correction=0), torch.ones(values.shape[1]))
    plain = Table(path, inputs=["width"], targets="price", limit=10, standardize=False).load()
    x, y = plain[0].targets.double(), plain[1].targets.double()
    torch.testing.assert_close(test.targets[:, 0], ((y - x.mean()) / x.std(correction=0)).float(), rtol=1e-4, atol=1e-5)
    x, y = lone(plain[0].samples).double(), lone(plain[1].samples).double()  # of the column of widths alone
    wanted = ((y - x.mean()) / x.std(correction=0)).float()[:, 0]
    torch.testing.assert_close(lone(test.samples)[:, INPUTS.index("width")], wanted, rtol=1e-4, atol=1e-5)


@needs_pyarrow
@pytest.mark.parametrize(
    ("changed", "knobs", "error", "sentence"),
    [
        ({}, {"targets": "prize"}, ConfigError, "data.targets=prize: "),
        ({}, {"inputs": ["size"]}, ConfigError, "data.inputs=size: "),
        ({}, {"targets": ["price", "kind"], "inputs": INPUTS}, ConfigError, "data.targets: column kind of "),
        (
            {},
            {"weights": "kind", "targets": "price", "inputs": INPUTS},
            ConfigError,
            "data.weights: column kind of ",
        ),
        ({}, {"targets": "kind", "classes": 2, "inputs": INPUTS}, ConfigError, "has 3 different labels"),
        (
            {"price": ["", *map(str, COLUMNS["price"][1:])]},
            {"targets": "price", "inputs": INPUTS},
            CorruptDataError,
            "column price has nothing in row 0",
        ),
        (
            {"price": ["nan", *map(str, COLUMNS["price"][1:])]},
            {"targets": "price", "inputs": INPUTS},
            CorruptDataError,
            "column price has nothing in row 0",
        ),
        ({}, {"targets": ["kind", "rooms"], "kind": "labels"}, ConfigError, "labels are one column of "),
        ({name: column[:0] for name, column in COLUMNS.items()}, {"targets": "price"}, ConfigError, "has no rows"),
        (
            {name: column[:3] for name, column in COLUMNS.items()},
            {"inputs": INPUTS},
            ConfigError,
            "a fifth for test",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_column(
    changed: dict[str, Any], knobs: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        load_checked("table", Table(str(table(tmp_path, **changed)), **{"targets": "kind", **knobs}))
    text = str(caught.value)
    assert sentence in text and str(tmp_path) in text


@needs_pyarrow
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_of_text_among_the_inputs_is_refused_by_the_head_of_a_file(suffix: str, tmp_path: Path) -> None:
    path = table(tmp_path, suffix)
    with pytest.raises(ConfigError) as caught:
        _ = Table(str(path), targets="price").spec
    left = "width,rooms,garden,area,trust"
    said = f"data.inputs: column kind of {path} is string; must be numbers, or left out: 'data.inputs=[{left}]'"
    assert str(caught.value) == f"{said}. Write categories as columns of 0 and 1; data.tokens=bytes reads text"
    assert Table(str(path), inputs=[*left.split(",")], targets="price").spec.input_shape == (5,)


@needs_pyarrow
def test_a_table_with_other_marks_between_its_columns_is_told_which_are_read(tmp_path: Path) -> None:
    for name, mark in (("a.csv", ";"), ("b.csv", "\t")):
        (tmp_path / name).write_text(f"width{mark}price\n1.5{mark}2.5\n")
        with pytest.raises(ConfigError, match=r"has one column, 'width.+price'; a \.csv file is read with commas"):
            _ = Table(str(tmp_path / name), targets="price").spec


@needs_pyarrow
def test_decimal_commas_do_not_hide_the_marks_between_columns(tmp_path: Path) -> None:
    """Each row then has more commas than the names have."""
    (tmp_path / "a.csv").write_text("width;price\n1,5;2,5\n")
    with pytest.raises(ConfigError, match=r"has one column, 'width;price'; .* Write numbers with a decimal point"):
        _ = Table(str(tmp_path / "a.csv"), targets="price").spec


@needs_pyarrow
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_suffix_may_be_in_capitals(suffix: str, tmp_path: Path) -> None:
    path = table(tmp_path, suffix)
    spec = Table(str(path), inputs=INPUTS, targets="kind").spec
    path = path.rename(path.with_suffix(suffix.upper()))
    assert Table(str(path), inputs=INPUTS, targets="kind").spec == spec


@needs_pyarrow
def test_one_input_may_be_named_without_a_list(tmp_path: Path) -> None:
    alone, listed = (Table(str(table(tmp_path)), inputs=inputs, targets="price") for inputs in ("area", ["area"]))
    assert alone.spec == listed.spec and torch.equal(alone.load()[0].inputs, listed.load()[0].inputs)  # pyright: ignore


@pytest.mark.parametrize("data", ["table", "arrays", "hugging_face"])
def test_no_inputs_at_all_are_refused(data: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.inputs=\[\]: must .*have one entry at least"):
        engine.prepare([f"data={data}", "data.path=x.csv", "data.inputs=[]"]).plan()


def test_no_targets_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.targets=\[\]: must .*have one entry at least"):
        engine.prepare(["data=table", "data.path=x.csv", "data.targets=[]"]).plan()


@needs_pyarrow
def test_the_head_of_a_tables_test_file_is_held_to_what_is_read_of_it(tmp_path: Path) -> None:
    for name, changed, sentence in (
        ("a", {"rooms": COLUMNS["kind"]}, "data.inputs: column rooms of "),
        ("b", {"price": COLUMNS["kind"]}, "data.targets: column price of "),
    ):
        (tmp_path / name).mkdir()
        test = table(tmp_path / name, **changed)
        with pytest.raises(ConfigError, match=sentence):
            _ = Table(str(table(tmp_path)), str(test), INPUTS, "price").spec
    (tmp_path / "short.csv").write_text("width,price\n1.5,2.5\n")
    with pytest.raises(ConfigError, match=r"data\.inputs=rooms: .*short\.csv does not have it\. It has"):
        _ = Table(str(table(tmp_path)), str(tmp_path / "short.csv"), ["width", "rooms"], "price").spec


@needs_pyarrow
def test_what_a_head_cannot_tell_is_refused_when_the_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    rows = ["1.5,0.25"] * 200_000 + ["many,0.25"]  # more than a block, by which types are told
    path.write_text("\n".join(["a,target", *rows]))
    data = Table(str(path), targets="target")
    assert data.spec.input_shape == (1,)
    with pytest.raises((ConfigError, CorruptDataError), match=r"late\.csv"):
        data.load()


@needs_pyarrow
def test_a_plan_of_a_table_reads_its_head_alone_where_classes_are_said(tmp_path: Path) -> None:
    path = table(tmp_path)
    row = path.read_text().splitlines()[1]
    path.write_text(path.read_text() + f"{row}\n" * 40_000 + ",,\n")  # nobody can read the whole of it
    spec = Table(str(path), inputs=INPUTS, targets="kind", classes=3).spec
    assert spec.input_shape == (3,) and spec.train_size is None
    with pytest.raises(CorruptDataError, match=r"houses\.csv cannot be read"):
        Table(str(path), inputs=INPUTS, targets="kind", classes=3).load()


@pytest.mark.parametrize("key", ["path", "test_path"])
@pytest.mark.parametrize("made", [Arrays, FashionMNIST, HuggingFace, Images, SVMLight, Table, Text])
def test_an_empty_path_is_not_the_current_folder(made: Any, key: str) -> None:
    key = {FashionMNIST: "root"}.get(made, key if key in signature(made).parameters else "path")
    for path in ("", " "):
        with pytest.raises(ConfigError, match=rf"^data\.{key}={path}: is empty\. Name a file"):
            made(**{key: path})


# -- images


def folder_of_images(folder: Path, sizes: dict[str, tuple[int, int]] | None = None) -> Path:
    from PIL import Image

    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for i in range(6):
            width, height = (sizes or {}).get(f"{name}/{i}", (4, 3))
            pixels = np.full((height, width, 3), [label * 100, i * 40, 255], dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_images_are_labelled_by_their_folders_and_read_when_they_are_wanted(tmp_path: Path) -> None:
    data = Images(str(folder_of_images(tmp_path / "pets")))
    assert data.spec.input_shape == (3, 3, 4) and data.spec.classes == 2
    train, test = load_checked("images", data)
    assert (len(train), len(test)) == (10, 2) == (data.spec.train_size, data.spec.test_size)
    taken = [split.take(slice(None)) for split in (train, test)]
    inputs = torch.cat([each.inputs for each in taken if isinstance(each.inputs, Tensor)])
    labels = torch.cat([each.targets for each in taken])
    assert torch.equal(inputs[:, 0, 0, 0], labels * 100 / 255) and bool((inputs[:, 2] == 1).all())
    assert sorted((inputs[:, 1, 0, 0] * 255 / 40).round().tolist()) == sorted([*map(float, range(6))] * 2)
    assert torch.equal(train.targets, taken[0].targets)  # pyright: ignore[reportArgumentType]
    grey = Images(str(tmp_path / "pets"), size=(8, 8), mode="L", limit=3)
    assert grey.load()[0].take(slice(None)).inputs.shape == (3, 1, 8, 8)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_pipe_among_images_is_named_before_anything_is_read(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").touch()
    os.mkfifo(tmp_path / "dog" / "b.png")
    with pytest.raises(ConfigError, match=r"dog/b\.png is a directory, a pipe"):
        Images(str(tmp_path)).load()


def test_a_link_to_nothing_among_images_is_named_before_anything_is_read(tmp_path: Path) -> None:
    pets = folder_of_images(tmp_path / "pets")
    for name in ("dog/7.png", "fox"):
        (pets / name).symlink_to("gone")
        with pytest.raises(MissingDataError, match=rf"pets/{name} is a link to gone, which is not there\."):
            _ = Images(str(pets)).spec
        (pets / name).unlink()


def test_other_classes_for_test_are_named_before_anything_is_read(tmp_path: Path) -> None:
    pets, held = folder_of_images(tmp_path / "pets"), folder_of_images(tmp_path / "held")
    (held / "dog").rename(held / "fox")
    with pytest.raises(ConfigError, match=r"data\.test_path=.*held: .*data\.path=.*pets\. It lacks dog, and has fox"):
        _ = Images(str(pets), test_path=str(held)).spec


def test_an_image_that_is_no_image_or_of_another_size_is_named(tmp_path: Path) -> None:
    pets = folder_of_images(tmp_path / "pets", {"dog/3": (5, 3)})
    with pytest.raises(SampleError, match=r"sample 9: .*dog/3\.png: is of 3 x 5 pixels, and the first of 3 x 4\. "):
        for split in Images(str(pets)).load():
            split.take(slice(None))
    (pets / "dog" / "3.png").write_bytes(b"no picture")
    with pytest.raises(SampleError, match=r"sample 9: reading it raised ImageError: .*dog/3\.png: is no image of PNG"):
        for split in Images(str(pets)).load():
            split.take(slice(None))
    (pets / "bird").mkdir()
    with pytest.raises(ConfigError, match="has no images in bird"):
        _ = Images(str(pets)).spec
    with pytest.raises(ConfigError, match="must be a folder with a folder of images for each class"):
        _ = Images(str(pets / "cat" / "0.png")).spec


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *, rows: bytes = b"", more: bytes = b"") -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + more + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


DAMAGED = {
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "noise": b"\x89PNG\r\n\x1a\n" + bytes(range(200)),
    "cut": png(9, 9, rows=bytes(range(90)))[:60],
    "cut gif": b"GIF89a\x05\0\x05\0\x80\0\0",
    "cut tiff": b"II*\0\x08\0\0\0\x01\0",
    "digits": b"P6 " + b"9" * 100_000 + b" 1 255\n",
    "text": png(2, 2, rows=b"\0" * 6, more=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(3 << 20)))),
    "huge": png(2**31 - 1, 2**31 - 1),
    "large": png(13_000, 13_000),
}


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_damaged_image_is_named_whether_it_is_the_first_or_not(tmp_path: Path, kind: str) -> None:
    pets = folder_of_images(tmp_path / "pets")
    (pets / "dog" / "3.png").write_bytes(DAMAGED[kind])
    with pytest.raises(SampleError, match=r"sample 9: reading it raised ImageError: .*dog/3\.png: "):
        for split in Images(str(pets)).load():
            split.take(slice(None))
    (pets / "cat" / "0.png").write_bytes(DAMAGED[kind])
    with pytest.raises(SampleError, match=r"pets/cat/0\.png: ") as caught:
        _ = Images(str(pets)).spec
    assert caught.value.exit_code == 7


def test_a_format_that_no_suffix_names_is_not_decoded(tmp_path: Path) -> None:
    """Pillow looks at the content: what is in a .png may start any of its decoders."""
    from PIL import Image

    pets = folder_of_images(tmp_path / "pets")
    with Image.open(pets / "dog" / "0.png") as picture:
        picture.convert("RGB").save(tmp_path / "0.pcx")
    (pets / "dog" / "0.png").write_bytes((tmp_path / "0.pcx").read_bytes())
    with pytest.raises(SampleError, match=r"dog/0\.png: "):
        for split in Images(str(pets)).load():
            split.take(slice(None))


def test_no_more_pixels_are_decoded_than_the_first_image_or_the_bounds_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pets = folder_of_images(tmp_path / "pets")
    (pets / "dog" / "3.png").write_bytes(png(7, 7, rows=bytes(56)))
    with pytest.raises(SampleError, match=r"7 x 7 pixels; the most is 48\. .*, or data\.size resizes"):
        for split in Images(str(pets)).load():
            split.take(slice(None))
    monkeypatch.setattr(images, "MOST_RESIZED", 24)
    with pytest.raises(SampleError, match=r"7 x 7 pixels; the most is 24$"):
        for split in Images(str(pets), size=(2, 2)).load():
            split.take(slice(None))
    monkeypatch.setattr(images, "MOST_PIXELS", 11)
    with pytest.raises(SampleError, match=r"3 x 4 pixels; the most is 11\. .*data\.size"):
        _ = Images(str(pets)).spec


@pytest.mark.parametrize("kind", ["png", "tif", "ppm"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_an_image_of_16_bits_keeps_its_values(tmp_path: Path, kind: str, mode: Any) -> None:
    from PIL import Image

    values = np.array([[0, 2000, 40_000], [65_535, 256, 1]], dtype=np.uint16)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(3):
            if kind == "ppm":
                (tmp_path / name / f"{i}.ppm").write_bytes(b"P5 3 2 65535\n" + values.astype(">u2").tobytes())
            else:
                Image.fromarray(values).save(tmp_path / name / f"{i}.{kind}")
    taken = Images(str(tmp_path), mode=mode).load()[0].take(slice(0, 1)).inputs
    assert isinstance(taken, Tensor) and taken.shape[1] == {"L": 1, "RGB": 3}[mode]
    assert torch.equal(taken[0, -1], torch.from_numpy(values.astype(np.float32)) / 65_535)
    small = Images(str(tmp_path), mode=mode, size=(1, 1)).load()[0].take(slice(0, 1)).inputs
    assert isinstance(small, Tensor) and 0.2 < small.mean() < 0.3, "not white, as Pillow's convert has it"


@pytest.mark.parametrize(("dtype", "word"), [(np.int32, "whole numbers of 32 bits"), (np.float32, "floating-point")])
def test_an_image_of_other_numbers_is_refused(tmp_path: Path, dtype: type, word: str) -> None:
    from PIL import Image

    pets = folder_of_images(tmp_path / "pets")
    Image.fromarray(np.ones((3, 4), dtype=dtype)).save(pets / "cat" / "0.tif")
    with pytest.raises(SampleError, match=f"holds {word}.*data=arrays"):
        Images(str(pets), size=(3, 4)).load()[0].take(slice(None))
    (pets / "cat" / "0.tif").rename(pets / "cat" / "00.tif")
    (pets / "cat" / "0.png").unlink()
    with pytest.raises(SampleError, match=f"00\\.tif: .*holds {word}"):
        _ = Images(str(pets)).spec


def tiff(values: np.ndarray, bits: int, white_is_zero: bool = False, signed: bool = False) -> bytes:
    """A TIFF of grey values, which is not compressed."""
    height, width = values.shape
    pixels = values.astype("<u2" if bits == 16 else "u1").tobytes()
    if bits == 12:
        digits = "".join(f"{value:03x}" for value in values.flatten())
        pixels = bytes.fromhex(digits)
    sizes = {
        256: width,
        257: height,
        258: bits,
        259: 1,
        262: int(not white_is_zero),
        273: 122,
        277: 1,
        279: len(pixels),
        339: 1 + signed,
    }
    entries = b"".join(struct.pack("<HHII", tag, 4 if tag == 279 else 3, 1, value) for tag, value in sizes.items())
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(sizes)) + entries + bytes(4) + pixels


@pytest.mark.parametrize(("bits", "white_is_zero"), [(12, False), (16, True), (16, False)])
def test_grey_values_of_a_tiff_are_read_by_its_bits_and_by_what_it_calls_white(
    bits: int, white_is_zero: bool, tmp_path: Path
) -> None:
    most = 2**bits - 1
    values = np.array([[0, most // 4], [most, 3]])
    for name in ("cat/0.tif", "cat/1.tif", "cat/2.tif", "dog/0.tif", "dog/1.tif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(tiff(values, bits, white_is_zero))
    taken = Images(str(tmp_path), mode="L").load()[0].take(slice(0, 1)).inputs
    wanted = (most - values if white_is_zero else values) / most
    np.testing.assert_allclose(lone(taken)[0, 0], wanted, atol=1e-6)


@pytest.mark.parametrize("bits", [8, 16])
def test_numbers_with_a_sign_that_a_tiff_holds_are_refused(bits: int, tmp_path: Path) -> None:
    pets = folder_of_images(tmp_path / "pets")
    (pets / "cat" / "0.png").rename(pets / "cat" / "0.tif").write_bytes(tiff(np.full((3, 4), -1), bits, signed=True))
    with pytest.raises(SampleError, match=r"0\.tif: holds whole numbers .* with a sign, .*data=arrays"):
        _ = Images(str(pets)).spec


def test_floats_that_a_ppm_holds_are_refused(tmp_path: Path) -> None:
    pets = folder_of_images(tmp_path / "pets")
    (pets / "cat" / "0.png").rename(pets / "cat" / "0.ppm").write_bytes(
        b"Pf 4 3 -1.0\n" + np.full(12, 0.75, dtype="<f4").tobytes()
    )
    with pytest.raises(SampleError, match=r"0\.ppm: holds floating-point numbers"):
        _ = Images(str(pets)).spec


@pytest.mark.parametrize("suffix", ["gif", "tif", "webp", "png"])
def test_an_image_of_several_frames_is_refused(suffix: str, tmp_path: Path) -> None:
    from PIL import Image

    pets = folder_of_images(tmp_path / "pets")
    (pets / "cat" / "0.png").unlink()
    frames = [Image.new("L", (4, 3), color) for color in (0, 255)]
    frames[0].save(pets / "cat" / f"0.{suffix}", save_all=True, append_images=frames[1:])
    with pytest.raises(SampleError, match=rf"0\.{suffix}: has several frames or pages"):
        _ = Images(str(pets)).spec


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_an_image_that_is_transparent_in_places_is_refused_and_an_opaque_one_is_not(mode: str, tmp_path: Path) -> None:
    from PIL import Image

    pets = folder_of_images(tmp_path / "pets")
    picture = Image.new("RGBA", (4, 3), (9, 9, 9, 255)).convert(mode)
    picture.save(pets / "cat" / "0.png")
    assert Images(str(pets)).spec.classes == 2
    if mode == "P":
        picture.info["transparency"] = picture.getpixel((0, 0))
    else:
        picture.putpixel((1, 1), (0,) * len(mode))
    picture.save(pets / "cat" / "0.png")
    with pytest.raises(SampleError, match=r"0\.png: is transparent in places"):
        _ = Images(str(pets)).spec


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_an_image_in_lab_has_the_colours_that_it_shows(mode: str, tmp_path: Path) -> None:
    from PIL import Image, ImageCms

    pets = folder_of_images(tmp_path / "pets")
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    grey = Image.new("RGB", (4, 3), (90, 90, 90))
    lab = ImageCms.profileToProfile(grey, *profiles, outputMode="LAB")
    (pets / "cat" / "0.png").unlink()
    lab.save(pets / "cat" / "0.tif")
    pixels = _opened(pets / "cat" / "0.tif", mode, None, 100)
    assert (pixels - 90 / 255).abs().max() < 3 / 255


def test_grey_values_of_16_bits_that_are_transparent_in_places_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    pets = folder_of_images(tmp_path / "pets")
    picture = Image.fromarray(np.full((3, 4), 40_000, dtype=np.uint16))
    picture.save(pets / "cat" / "0.png", transparency=39_999)
    assert Images(str(pets)).spec.classes == 2
    picture.save(pets / "cat" / "0.png", transparency=40_000)
    with pytest.raises(SampleError, match=r"0\.png: is transparent in places"):
        _ = Images(str(pets)).spec


@pytest.mark.parametrize(("bits", "colours", "key"), [(2, 0, b"\0\1"), (4, 0, b"\0\3"), (16, 2, b"\0\1\0\1\0\1")])
def test_pngs_whose_transparent_colour_cannot_be_told_are_refused(
    bits: int, colours: int, key: bytes, tmp_path: Path
) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + bytes(-(-4 * bits * (3 if colours else 1) // 8))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 3, bits, colours, 0, 0, 0))
    rest = chunk(b"IDAT", zlib.compress(3 * row)) + chunk(b"IEND", b"")
    pets = folder_of_images(tmp_path / "pets")
    (pets / "cat" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + rest)
    assert Images(str(pets)).spec.classes == 2
    (pets / "cat" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"tRNS", key) + rest)
    with pytest.raises(SampleError, match=r"0\.png: is transparent in places"):
        _ = Images(str(pets)).spec


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp"])
def test_a_photograph_is_turned_as_its_camera_says(suffix: str, tmp_path: Path) -> None:
    from PIL import Image

    pets = folder_of_images(tmp_path / "pets")
    (pets / "cat" / "0.png").unlink()
    picture, exif = Image.new("L", (16, 8)), Image.Exif()
    picture.paste(255, (0, 0, 16, 2))
    exif[0x0112] = 6  # a quarter turn to the right: the bright rows are columns at the right
    picture.save(pets / "cat" / f"0.{suffix}", exif=exif, quality=100)
    assert Images(str(pets)).spec.input_shape == (3, 16, 8)
    for other in (*pets.glob("*/[1-9].png"), pets / "dog" / "0.png"):
        other.unlink()
    for i in range(5):
        (pets / "dog" / f"{i}.{suffix}").write_bytes((pets / "cat" / f"0.{suffix}").read_bytes())
    pixels = lone(Images(str(pets), mode="L").load()[0].take(slice(0, 1)).inputs)[0, 0]
    assert pixels[:, -2:].min() > 0.9 and pixels[:, :-2].max() < 0.1


def test_a_photograph_of_damaged_exif_data_is_read_as_it_is(tmp_path: Path) -> None:
    from PIL import Image

    pets = folder_of_images(tmp_path / "pets")
    Image.new("L", (4, 3)).save(pets / "cat" / "0.jpg", exif=b"Exif\0\0nonsense")
    (pets / "cat" / "0.png").unlink()
    assert Images(str(pets)).spec.input_shape == (3, 3, 4)


def test_a_photograph_with_its_previews_is_one_image(tmp_path: Path) -> None:
    from PIL import Image

    pets = folder_of_images(tmp_path / "pets")
    first, preview = Image.new("RGB", (4, 3), "white"), Image.new("RGB", (2, 2))
    first.save(pets / "cat" / "0.jpg", format="MPO", save_all=True, append_images=[preview])
    (pets / "cat" / "0.png").unlink()
    assert Images(str(pets)).spec.input_shape == (3, 3, 4)


def test_all_suffixes_of_the_formats_are_read(tmp_path: Path) -> None:
    from PIL import Image

    known = Image.registered_extensions()
    assert {suffix for suffix, name in known.items() if name in images.FORMATS} == images.SUFFIXES
    pets = folder_of_images(tmp_path / "pets")
    for suffix in ("jfif", "jpe", "pgm", "PNM"):
        kind = "JPEG" if suffix[0] == "j" else "PPM"
        Image.new("L", (4, 3)).save(pets / "cat" / f"x.{suffix}", format=kind)
    assert Images(str(pets)).spec.train_size == 13 and len(Images(str(pets)).load()[0]) == 13


def test_images_of_a_linked_folder_are_read_once(tmp_path: Path) -> None:
    pets, more = folder_of_images(tmp_path / "pets"), folder_of_images(tmp_path / "more")
    (pets / "cat" / "more").symlink_to(more / "cat")
    assert len(Images(str(pets)).files()) == 18
    for name, target, folder in (
        ("again", pets / "cat", "dog/again"),
        ("all", pets, "dog/all/cat"),
        ("self", pets / "dog", "dog/self"),
    ):
        link = pets / "dog" / name
        link.symlink_to(target)
        with pytest.raises(ConfigError, match=rf"pets/{folder}: is the folder .*, which is read already"):
            _ = Images(str(pets)).spec
        link.unlink()
    (pets / "dog" / "x").symlink_to(pets / "dog" / "x")
    with pytest.raises(MissingDataError, match=r"dog/x cannot be read: Too many levels of symbolic links"):
        _ = Images(str(pets)).spec


def test_hidden_folders_and_files_are_neither_classes_nor_samples(tmp_path: Path) -> None:
    pets, held = folder_of_images(tmp_path / "pets"), folder_of_images(tmp_path / "held")
    for folder in (pets, held):
        hidden = (".ipynb_checkpoints/x.png", "cat/.ipynb_checkpoints/0-checkpoint.png", "dog/._0.png")
        of_systems = ("@eaDir/0.png/thumb.jpg", "cat/@eaDir/x.png", "#recycle/x.png", "$RECYCLE.BIN/x.png")
        for each in (*hidden, *of_systems):
            (folder / each).parent.mkdir(exist_ok=True, parents=True)
            (folder / each).write_bytes((folder / "cat" / "0.png").read_bytes())
    spec = Images(str(pets), test_path=str(held)).spec
    assert (spec.classes, spec.train_size, spec.test_size) == (2, 12, 12)
    assert [len(split) for split in Images(str(pets), test_path=str(held)).load()] == [12, 12]


# -- Hugging Face


def saved(folder: Path, split: bool = False, **changed: Any) -> Path:
    import datasets

    rows = {
        "tokens": RNG.integers(50, size=(N, 4)).tolist(),
        "size": RNG.normal(size=N).tolist(),
        "label": [i % 3 for i in range(N)],
        "mask": [[True, i % 2 == 0] for i in range(N)],
        "pair": RNG.normal(size=(N, 2)).tolist(),
        **changed,
    }
    data = datasets.Dataset.from_dict(rows)
    whole = datasets.DatasetDict({"train": data, "test": data.select(range(6))}) if split else data
    whole.save_to_disk(str(folder / "saved"))
    return folder / "saved"


@needs_datasets
@pytest.mark.parametrize("split", [False, True])
def test_columns_of_a_saved_data_set_are_read_by_rows(split: bool, tmp_path: Path) -> None:
    data = HuggingFace(str(saved(tmp_path, split)), inputs=["tokens", "size"])
    train, test = load_checked("hugging_face", data)
    assert (len(train), len(test)) == ((N, 6) if split else (20, 5)) == (data.spec.train_size, data.spec.test_size)
    assert data.spec.classes == 3 and {key: field.shape for key, field in data.spec.fields.items()} == {
        "tokens": (4,),
        "size": (),
    }
    taken = train.take(torch.tensor([3, 1]))
    again = train.take(slice(0, 4))
    assert torch.equal(taken.inputs.tensors["tokens"], again.inputs.tensors["tokens"][[3, 1]])  # pyright: ignore
    assert torch.equal(taken.targets, again.targets[[3, 1]])
    numbers = HuggingFace(str(tmp_path / "saved"), inputs="tokens", targets="pair", weights="mask")
    assert numbers.spec.targets == "numbers" and numbers.load()[0].take(slice(0, 2)).weights is not None


@needs_datasets
def test_what_is_wrong_with_a_saved_data_set_is_said(tmp_path: Path) -> None:
    path = str(saved(tmp_path, ragged=[[1.0] * (1 + i % 2) for i in range(N)], text=["a"] * N))
    with pytest.raises(
        ConfigError, match=r"data\.targets=labels: .* does not have it\. It has 'tokens', 'size', 'label'"
    ):
        _ = HuggingFace(path, targets="labels").spec
    with pytest.raises(ConfigError, match="column text is string; must be numbers, or lists of one length"):
        _ = HuggingFace(path, inputs="text").spec
    ragged = HuggingFace(path, inputs="ragged")
    with pytest.raises(SampleError, match="column ragged has"):
        ragged.load()[0].take(slice(0, 8))
    (tmp_path / "other").mkdir()
    with pytest.raises(CorruptDataError, match="is no data set that was saved"):
        _ = HuggingFace(str(tmp_path / "other")).spec


@pytest.mark.parametrize("data", [Table("/none/x.csv"), Images("/none"), HuggingFace("/none")])
def test_what_is_not_there_is_said_with_how_to_get_it(data: Data) -> None:
    with pytest.raises(MissingDataError, match=r"/none.* is not there\. Set data\.path to "):
        _ = data.spec
    assert data.found() is None


@needs_pyarrow
@pytest.mark.parametrize("order", ["said,kind", "kind,said"])
def test_cells_of_several_lines_are_read_from_a_table_of_any_size(order: str, tmp_path: Path) -> None:
    """More than the first MiB, which ends within a cell."""
    said, rows = '"one, and\ntwo ' + "x" * 700 + '"', 2_000
    first = [f"{said},{i % 2}" if order.startswith("said") else f"{i % 2},{said}" for i in range(rows)]
    path = tmp_path / "said.csv"
    path.write_text("\n".join([order, *first]) + "\n")
    train, test = Table(str(path), targets="kind", tokens="bytes", length=12).load()
    assert len(train) + len(test) == rows
    assert isinstance(train.inputs, Tensor)
    assert bytes(train.inputs[0].tolist()).decode() == "one, and\ntwo"


@needs_pyarrow
@pytest.mark.parametrize("rows", [5, 9_000])
@pytest.mark.parametrize("target", ["note", "b"])
def test_a_quote_that_is_not_closed_swallows_no_rows(rows: int, target: str, tmp_path: Path) -> None:
    """The column with the quote is the last one, and the target or not used."""
    path = tmp_path / "x.csv"
    path.write_text("a,b,note\n" + "1,0,yes\n" * 9 + '1,1,"no\n' + f"1,1,{'no' * 60}\n" * rows)
    with pytest.raises(CorruptDataError, match=r"quote (before 'no' in row 9 )?is not closed"):
        Table(str(path), targets=target, inputs=["a"]).load()


@needs_pyarrow
@pytest.mark.parametrize(("suffix", "end"), [(".csv", "\n"), (".csv", "\r"), (".tsv.gz", "\r\n")])
def test_quotes_that_open_texts_swallow_no_rows(suffix: str, end: str, tmp_path: Path) -> None:
    """Each of two rows begins with a quote, and is no cell in quotes."""
    mark = "\t" if suffix == ".tsv.gz" else ","
    rows = [f"{first}good {i}{mark}{i % 2}" for i, first in enumerate(['"', "", "", '"', "", ""])]
    text = end.join([f"said{mark}kind", *rows]) + end
    path = tmp_path / f"said{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    with pytest.raises(CorruptDataError, match="line 5: text follows the quote that closes a cell of several lines"):
        Table(str(path), targets="kind", tokens="bytes", length=12).load()
    path = tmp_path / "several.csv"
    path.write_text("said,kind\n" + '"one\nand ""two""",0\n"a"b,1\n' * 5)
    assert sum(map(len, Table(str(path), targets="kind", tokens="bytes", length=12).load())) == 10


@needs_pyarrow
def test_a_test_set_that_is_the_training_set_is_noted(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones((9, 2)), targets=np.arange(9) % 2)
    (tmp_path / "link.npz").symlink_to("x.npz")
    (tmp_path / "x.svm").write_text("0 1:1\n1 1:2\n" * 9)
    photos = tmp_path / "photos"
    for name in ("a/0.png", "b/0.png"):
        (photos / name).parent.mkdir(parents=True)
        (photos / name).touch()
    other = Arrays(str(tmp_path / "x.npz"))
    for data in (
        Arrays(str(tmp_path / "x.npz"), str(tmp_path / "link.npz")),
        Table(str(table(tmp_path)), str(tmp_path / "houses.csv"), targets="kind"),
        Images(str(photos), str(photos)),
        SVMLight(str(tmp_path / "x.svm"), str(tmp_path / "x.svm")),
    ):
        notes = notes_on(other.spec, data.described())
        assert len([each for each in notes if each.startswith("data.test_path: is data.path")]) == 1
    assert not [each for each in notes_on(other.spec, other.described()) if "test_path" in each]


@needs_pyarrow
def test_a_parquet_file_whose_checksums_do_not_fit_is_damaged(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "x.parquet"
    columns = {"a": np.arange(9.0), "target": np.arange(9) % 2}
    pyarrow.parquet.write_table(
        pyarrow.table(columns), path, write_page_checksum=True, compression="none", use_dictionary=False
    )
    assert len(Table(str(path)).load()[0]) == 8
    whole = path.read_bytes()
    at = whole.index(np.float64(5.0).tobytes())
    path.write_bytes(whole[:at] + np.float64(5.5).tobytes() + whole[at + 8 :])
    with pytest.raises(CorruptDataError, match="could not verify page integrity, CRC checksum"):
        Table(str(path)).load()
