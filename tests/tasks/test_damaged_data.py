"""Damaged files of data are refused by name, whatever is wrong with them: no traceback, no wait, no end by a signal."""

import gzip
import io
import json
import os
import random
import struct
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from needs import needs_datasets, needs_pyarrow
from torch.utils.data import TensorDataset

from paceline.conf.errors import ConfigError
from paceline.tasks.base import Data, DataSpec, Split
from paceline.tasks.checks import check_spec, load_checked
from paceline.tasks.data import idx
from paceline.tasks.data.arrays import Arrays
from paceline.tasks.data.files import sha256_of
from paceline.tasks.data.hugging_face import HuggingFace
from paceline.tasks.data.mapped import arrays_of
from paceline.tasks.data.table import Table
from paceline.tasks.data.text import Text
from paceline.tasks.errors import CorruptDataError, MissingDataError, SampleError

REFUSED = (CorruptDataError, MissingDataError, SampleError, ConfigError)
N = 12
ARRAYS = {"x": np.arange(2 * N, dtype=np.float32).reshape(N, 2), "targets": np.arange(N) % 2}


def read(data: Data) -> None:
    """Does it as a plan and a run do."""
    check_spec("own", data.spec)
    for split in load_checked("own", data):
        split.take(slice(None))


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + bytes(200)


def tensors(header: Any, length: int | None = None) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(16)


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("x.txt", lambda path: Text(str(path)).load()),
        pytest.param("x.csv.gz", lambda path: read(Table(str(path))), marks=needs_pyarrow),
        ("x.gz", lambda path: idx.read_bytes(path, 9)),
        ("x.any", sha256_of),
    ],
)
def test_a_disk_that_fails_is_told_with_the_file(name: str, load: Callable[[Path], object], tmp_path: Path) -> None:
    """numpy.fromfile would return what came before."""
    (tmp_path / name).symlink_to("/proc/self/mem")  # which opens, and cannot be read
    with pytest.raises(MissingDataError, match=rf"{name} cannot be read: Input/output error"):
        load(tmp_path / name)


# -- arrays


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2147483648, 8589934592)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4.0,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (None,)}",
        "{'descr': 'nothing', 'fortran_order': False, 'shape': (4,)}",
        "{'descr': [1], 'fortran_order': False, 'shape': (4,)}",
        "(" * 5000,
        "'''",
        "__import__('os').system('false')",
    ],
)
def test_headers_of_npy_that_cannot_be(header: str, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(npy(header))
    np.save(tmp_path / "targets.npy", ARRAYS["targets"])
    with pytest.raises(CorruptDataError, match=r"x is no array of NumPy|x is cut short"):
        read(Arrays(str(tmp_path)))


@pytest.mark.parametrize(
    "header",
    [
        "[" * 400_000,
        {"x": {"dtype": "F32", "shape": ["4"], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]}},
        '{"x": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 16]}}',
        {"x": {"dtype": "F32", "shape": [2**31, 2**33], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": ["0", "16"]}},
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0.0, 16.0]}},
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": [None, 16]}},
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}},
        {"x": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]}},
        [1],
        "null",
    ],
    ids=range(13),
)
def test_headers_of_safetensors_that_cannot_be(header: Any, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(tensors(header))
    with pytest.raises(CorruptDataError, match=r"a\.safetensors is damaged"):
        read(Arrays(str(tmp_path / "a.safetensors")))


def packed() -> bytes:
    np.savez_compressed(file := io.BytesIO(), **ARRAYS)  # pyright: ignore[reportArgumentType]
    return file.getvalue()


def stored() -> bytes:
    np.savez(file := io.BytesIO(), **ARRAYS)  # pyright: ignore[reportArgumentType]
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.npz", packed),
        ("b.npz", stored),
        ("c.safetensors", lambda: safetensors.numpy.save(ARRAYS)),
    ],
)
def test_random_bytes_of_arrays_are_changed(name: str, make: Callable[[], bytes], tmp_path: Path) -> None:
    chance, whole, path, refused = random.Random(0), make(), tmp_path / name, 0
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(4):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        path.write_bytes(changed)
        try:
            read(Arrays(str(path)))
        except REFUSED as error:
            refused += name in str(error)
    assert refused >= 15


@pytest.mark.parametrize("make", [packed, stored])
def test_an_archive_with_any_bit_flipped_is_refused_or_read_as_it_was(
    make: Callable[[], bytes], tmp_path: Path
) -> None:
    whole, path = make(), tmp_path / "a.npz"
    refused = 0
    for at in range(0, len(whole), 17):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            found = {name: array.read()(slice(None)).numpy() for name, array in arrays_of(path).items()}
        except REFUSED:
            refused += 1
            continue
        for name in found:
            np.testing.assert_array_equal(found[name], ARRAYS[name])
    assert refused > 10


def test_a_flipped_bit_of_a_mapped_archive_is_refused_by_the_name_of_its_array(tmp_path: Path) -> None:
    path, whole = tmp_path / "a.npz", stored()
    path.write_bytes(whole)
    read(Arrays(str(path)))
    at = whole.index(ARRAYS["x"].tobytes())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(CorruptDataError, match=r"a\.npz is damaged: BadZipFile: Bad CRC-32 for file 'x\.npy'"):
        read(Arrays(str(path)))


def test_an_archive_with_two_arrays_of_a_name_or_one_that_is_not_as_long_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for members, sentence in (
        ([("x", ARRAYS["x"]), ("x.npy", ARRAYS["x"])], "has two arrays of the name x"),
        ([("x.npy", ARRAYS["x"])], "x is not as long as its header says"),
    ):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in members:
                np.save(file := io.BytesIO(), array)
                archive.writestr(name, file.getvalue() + bytes(8 * (len(members) == 1)))
        with pytest.raises(CorruptDataError, match=sentence):
            _ = Arrays(str(path), targets="x").spec


def test_whole_numbers_without_a_sign_are_labels_and_inputs(tmp_path: Path) -> None:
    for bits in (16, 32, 64):
        kind = np.dtype(f"uint{bits}")
        np.savez(tmp_path / "a.npz", x=ARRAYS["targets"].astype(kind), targets=ARRAYS["targets"].astype(kind))
        data = Arrays(str(tmp_path / "a.npz"))
        read(data)
        assert data.spec.classes == 2 and str(data.spec.input_dtype) == "torch.int64"
    np.savez(tmp_path / "a.npz", x=ARRAYS["x"], targets=ARRAYS["targets"].astype(np.uint64) + np.uint64(2**63))
    with pytest.raises(SampleError, match=r"targets has 9223372036854775809; must be less than 2\^63"):
        read(Arrays(str(tmp_path / "a.npz")))
    np.savez(tmp_path / "a.npz", x=ARRAYS["x"].astype(np.longdouble), targets=ARRAYS["targets"])
    with pytest.raises(ConfigError, match="x is an array of float128; must be of numbers"):
        read(Arrays(str(tmp_path / "a.npz")))


# -- saved data sets


def saved(folder: Path, features: Any = None, **columns: Any) -> Path:
    import datasets

    columns = {"x": [[float(i), 2.0] for i in range(N)], "label": [0, 1] * (N // 2), **columns}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(folder / "saved"))
    return folder / "saved"


@needs_datasets
@pytest.mark.parametrize("name", ["data-00000-of-00001.arrow", "state.json", "dataset_info.json"])
def test_a_pipe_in_a_saved_data_set_is_not_waited_for(name: str, tmp_path: Path) -> None:
    file = saved(tmp_path) / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ConfigError, match=f"{name} is a directory, a pipe"):
        read(HuggingFace(str(file.parent)))


@needs_datasets
def test_a_linked_split_of_a_saved_data_set_is_refused(tmp_path: Path) -> None:
    """Nothing in it would be looked at, and a pipe there would be waited for."""
    import datasets

    folder = tmp_path / "splits"
    splits: Any = {"train": datasets.load_from_disk(str(saved(tmp_path)))}
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    (folder / "train").rename(tmp_path / "elsewhere")
    (folder / "train").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"splits/train: is a link to a folder\. Move that folder to its place"):
        read(HuggingFace(str(folder)))


@needs_datasets
def test_damaged_rows_of_matrices_are_named(tmp_path: Path) -> None:
    import datasets

    matrices = [[[float(i), 2.0], [3.0, 4.0]] for i in range(N)]
    kinds = {"x": datasets.Array2D((2, 2), "float32"), "label": datasets.Value("int64")}
    [file] = saved(tmp_path, datasets.Features(kinds), x=matrices).glob("*.arrow")
    whole, offsets = file.read_bytes(), np.arange(0, 2 * N + 1, 2, dtype=np.int32)
    assert offsets.tobytes() in whole
    damaged = offsets.copy()
    damaged[N // 2] = 2**20
    file.write_bytes(whole.replace(offsets.tobytes(), damaged.tobytes()))
    with pytest.raises(CorruptDataError, match=rf"{file.name} is damaged"):
        read(HuggingFace(str(file.parent)))


@needs_datasets
@pytest.mark.parametrize("named", ["../data-00000-of-00001.arrow", "/dev/zero", 1, None])
def test_a_saved_data_set_names_files_beside_it_alone(named: Any, tmp_path: Path) -> None:
    state = saved(tmp_path) / "state.json"
    told = json.loads(state.read_text()) | {"_data_files": [{"filename": named}]}
    state.write_text(json.dumps(told))
    with pytest.raises(CorruptDataError, match=r"state\.json names .*; must be a file beside it"):
        read(HuggingFace(str(state.parent)))
    for text in ("[" * 100_000, "{}", "[]", '{"_data_files": 1}', '{"_data_files": [{}]}'):
        state.write_text(text)
        with pytest.raises(CorruptDataError, match=r"state\.json is no state of a saved data set"):
            read(HuggingFace(str(state.parent)))


@needs_datasets
@pytest.mark.parametrize("kind", ["Image", "Audio"])
def test_a_column_that_names_files_is_refused_before_one_is_opened(kind: str, tmp_path: Path) -> None:
    import datasets

    secret = tmp_path / "secret.png"
    os.mkfifo(secret)  # who opens it waits
    file = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    features = datasets.Features({"x": file, "label": datasets.Value("int64")})
    path = saved(tmp_path, features, x=[{"bytes": None, "path": str(secret)}] * N)
    told = json.loads((path / "dataset_info.json").read_text())
    told["features"]["x"] = {"_type": kind}
    (path / "dataset_info.json").write_text(json.dumps(told))
    with pytest.raises(ConfigError, match=f"column x is a {kind}; must be numbers, or lists of one length"):
        read(HuggingFace(str(path)))


@needs_datasets
def test_random_bytes_of_a_saved_data_set_are_changed(tmp_path: Path) -> None:
    """Some of these ended the process by a signal when a row was read."""
    file, chance, refused = saved(tmp_path) / "data-00000-of-00001.arrow", random.Random(0), 0
    whole = file.read_bytes()
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(3):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        file.write_bytes(changed)
        try:
            read(HuggingFace(str(file.parent)))
        except REFUSED as error:
            refused += str(tmp_path) in str(error)
    assert refused >= 15


# -- tables


@needs_pyarrow
@pytest.mark.parametrize("header", ["a,a,target", "a,target,target", "a,,,target"])
def test_two_columns_of_a_name_are_refused_where_they_are_used(header: str, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    names = header.split(",")
    (tmp_path / "x.csv").write_text("\n".join([header, *[",".join(["1"] * len(names))] * N]) + "\n")
    columns = pyarrow.Table.from_arrays([pyarrow.array([1] * N)] * len(names), names=names)
    pyarrow.parquet.write_table(columns, tmp_path / "x.parquet")
    for path in (tmp_path / "x.csv", tmp_path / "x.parquet"):
        with pytest.raises(ConfigError, match=r"has 2 columns of the name '(a|target|)'. Rename or remove them"):
            read(Table(str(path)))
    if header.endswith(",,target"):
        read(Table(str(tmp_path / "x.csv"), inputs="a"))


@needs_pyarrow
def test_what_is_not_utf_8_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes("größe,target\n".encode("latin-1") + b"1,2\n" * N)
    with pytest.raises(CorruptDataError, match=r"x\.csv cannot be read: the names of its columns are not UTF-8"):
        read(Table(str(path)))
    path.write_bytes(b"a,target\n" + b"1,yes\n2,no\n" * N + "3,möglich\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"data\.targets=target: is not UTF-8 in .*x\.csv\. Save the file as UTF-8"):
        read(Table(str(path)))


@needs_pyarrow
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(("used", "tokens"), [("targets", None), ("inputs", "bytes")])
def test_texts_that_are_not_utf_8_are_said(suffix: str, used: str, tokens: str | None, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / f"x.{suffix}"
    if suffix == "jsonl":
        path.write_bytes(b'{"a": 1, "kind": "no"}\n{"a": 2, "kind": "\xe9t\xe9"}\n' * N)
    else:
        raw = pyarrow.array([b"no", b"\xe9t\xe9"] * N)
        texts = pyarrow.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])
        pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2] * N, "kind": texts}), path, use_dictionary=False)
    inputs, targets = ("a", "kind") if used == "targets" else ("kind", "a")
    with pytest.raises(CorruptDataError, match=rf"column kind of .*x\.{suffix} cannot be read: .* is not UTF-8\. Save"):
        read(Table(str(path), inputs=inputs, targets=targets, tokens=tokens))


@needs_pyarrow
@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.csv.gz"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_said(encoding: str, name: str, tmp_path: Path) -> None:
    text = '\ufeff{"a": 1, "target": 0}\n' * N if "jsonl" in name else "\ufeffa,target\n" + "1,0\n2,1\n" * N
    data = text.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(CorruptDataError, match=f"{name} cannot be read: it is UTF-16. Save the file as UTF-8"):
        read(Table(str(tmp_path / name)))


@needs_pyarrow
@pytest.mark.parametrize("start", [b"null\n", b" \n\t null\n", b"\xef\xbb\xbfnull\n", b"[1]\n", b'"x"\n', b"7\n"])
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_first_row_that_is_no_mapping_is_said(start: bytes, suffix: str, tmp_path: Path) -> None:
    """pyarrow ends the process by SIGSEGV where the first row is null."""
    path, text = tmp_path / f"x.{suffix}", start + b'{"a": 1.5, "target": 1}\n{"a": 2.5, "target": 0}\n' * N
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    with pytest.raises(CorruptDataError, match=r"x\.jsonl(\.gz)? cannot be read: its first row is no mapping"):
        read(Table(str(path)))


@needs_pyarrow
def test_an_unused_column_of_json_lines_may_be_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b'{"a": 9007199254740992.0, "target": 1, "note": "\xe9"}\n{"a": 2.5, "target": 0, "note": ""}\n' * N
    )
    read(Table(str(path), inputs=["a"]))


@needs_pyarrow
@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        ("binary", [b"a", b"b"], r"is binary; must be text, numbers, or true and false\. Cast it to strings"),
        (
            "decimal",
            [Decimal("1.50"), Decimal("2.25")],
            r"is decimal128\(3, 2\); must be text, whole numbers or floats",
        ),
    ],
)
def test_bytes_and_decimals_of_parquet_are_no_labels(kind: str, values: list[Any], said: str, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a": [1] * 2 * N, "target": values * N}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=rf"data\.targets=target: column target of .*x\.parquet {said}"):
        read(Table(str(tmp_path / "x.parquet")))


@needs_pyarrow
def test_a_column_of_lists_is_no_target(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a": [1] * N, "target": [[1, 2]] * N}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=r"column target of .* is list<.*>; must be text, numbers, or true and false"):
        read(Table(str(tmp_path / "x.parquet")))
    as_input = Table(str(tmp_path / "x.parquet"), inputs="target", targets="a").spec
    assert as_input.input_shape == (2,)


@needs_pyarrow
def test_a_small_file_that_unpacks_to_more_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow
    import pyarrow.parquet

    many = np.zeros(50_000)
    pyarrow.parquet.write_table(pyarrow.table({"a": many, "target": many}), tmp_path / "x.parquet")
    np.savez_compressed(tmp_path / "x.npz", a=many, targets=many)
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 100_000
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 50}[name])
    with pytest.raises(ConfigError, match=r"x\.parquet: takes .* GiB once it is unpacked, .* Choose data=arrays"):
        read(Table(str(tmp_path / "x.parquet")))
    with pytest.raises(ConfigError, match=r"x\.npz: takes .* GiB once it is unpacked, .* Choose numpy\.savez"):
        read(Arrays(str(tmp_path / "x.npz")))


@needs_pyarrow
def test_no_thread_of_pyarrows_asks_python_for_a_tables_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does ends the process by a signal where Python ends first, in place of exit status 2 or 7."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    (tmp_path / "x.csv").write_text("a,target\n" + "1,2\n" * N)
    pyarrow.parquet.write_table(pyarrow.table({"a": [1] * N, "target": [2] * N}), tmp_path / "x.parquet")
    real, seen = pyarrow.csv.read_csv, []

    def read_csv(file: Any, options: Any, *more: Any) -> Any:
        seen.append((type(file), options.use_threads))
        return real(file, options, *more)

    class ParquetFile(pyarrow.parquet.ParquetFile):
        def __init__(self, file: Any, pre_buffer: bool = True, **more: Any) -> None:
            seen.append((type(file), pre_buffer))
            super().__init__(file, pre_buffer=pre_buffer, **more)

        def read(self, columns: Any, use_threads: bool = True) -> Any:  # pyright: ignore
            seen.append((pyarrow.OSFile, use_threads))
            return super().read(columns, use_threads=use_threads)

    monkeypatch.setattr(pyarrow.csv, "read_csv", read_csv)
    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", ParquetFile)
    for name in ("x.csv", "x.parquet"):
        read(Table(str(tmp_path / name)))
        assert seen and {*seen} <= {(pyarrow.OSFile, False), (pyarrow.BufferReader, False)}, name
        seen.clear()


@needs_pyarrow
def test_numbers_of_a_table_keep_their_digits_until_they_are_standardised(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    rows = [f"{1_700_000_000 + i % 2},0.1,{20_000_000.5 + i % 2}" for i in range(20)]
    path.write_text("\n".join(["seconds,same,target", *rows]) + "\n")
    train, _ = load_checked("table", Table(str(path)))
    taken = train.take(slice(None))
    assert isinstance(taken.inputs, torch.Tensor)
    seconds, same = taken.inputs.T
    assert seconds.dtype == taken.targets.dtype == torch.float32
    assert seconds.unique().numel() == taken.targets.unique().numel() == 2
    assert torch.equal(seconds.sign(), taken.targets.sign()) and float(seconds.std()) == pytest.approx(1, abs=0.1)
    assert not same.round(decimals=6).any()
    whole, _ = load_checked("table", Table(str(path), standardize=False))
    assert whole.take(slice(None)).targets.dtype == torch.float32


@needs_pyarrow
@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1])
def test_a_whole_number_that_float64_would_round_is_refused(number: int, tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("id,target\n" + f"{2**53},no\n1,yes\n" * 10 + f"{number},no\n")
    with pytest.raises(CorruptDataError, match=rf"column id is {number} in row 20 .*float64 cannot hold"):
        Table(str(tmp_path / "ids.csv")).load()


@needs_pyarrow
@pytest.mark.parametrize("number", [f"{2**53 + 1}", f"-{2**53 + 1}.5", f"{2**64 + 1}"])
def test_a_number_that_a_column_of_fractions_would_round_is_refused(number: str, tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    path.write_text("id,target\n" + f"{2**53},0.5\n1.5,1\n6.02e23,2\n" * 7 + f"{number},0.5\n")
    said = rf"column id is {number} in row 21 .*float64 cannot hold"
    with pytest.raises(CorruptDataError, match=said):
        Table(str(path)).load()
    with pytest.raises(CorruptDataError, match=said):
        _ = Table(str(path), inputs="target", targets="id", kind="labels").spec
    assert len(Table(str(path), inputs="target", targets="target").load()[0]) == 18, "the column is not read"


@needs_pyarrow
@pytest.mark.parametrize("key", ["path", "test_path"])
def test_a_number_that_float32_cannot_hold_is_refused(key: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("a,b,target\n" + "1,2,no\n3,2,yes\n" * 10)
    bad.write_text(good.read_text() + "1,1e39,no\n")
    with pytest.raises(CorruptDataError, match=r"bad.csv: column b is 1e\+39 in row 20 .*float32 cannot hold"):
        knobs: dict[str, Any] = {"path": str(good), key: str(bad)}
        Table(**knobs).load()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("splits", "said"),
    [
        (
            lambda x, y: (Split(x, y.tolist()), Split(x, y)),
            "a train split with targets in a list; must be",
        ),
        (lambda x, y: (Split(x, y), Split(x.to_sparse(), y)), "a test split with inputs in a tensor of layout .*_coo"),
        (lambda x, y: (Split(x, y), Split(x[:0], y[:0])), "a test split without samples"),
        (lambda x, y: (Split(x, y),), r"\['Split'\]; must be two splits, \(train, test\)"),
        (lambda x, y: (Split(x, y), None), r"\['Split', 'NoneType'\]; must be two splits"),
        (
            lambda x, y: ((x, y), (x, y)),
            r"\['tuple', 'tuple'\]; must be .* Choose .*\.Split\(inputs, targets\)",
        ),
        (lambda x, y: (TensorDataset(x, y),) * 2, r"\['TensorDataset', 'TensorDataset'\]; must be two splits"),
        (lambda x, y: (Split(torch.nested.nested_tensor([*x]), y),) * 2, "a train split .* of layout nested"),
        (lambda x, y: Split(x, y), r"Split; must be two splits"),
    ],
)
def test_what_is_no_pair_of_splits_of_tensors_is_refused(splits: Any, said: str) -> None:
    class Own(Data):
        @property
        def spec(self) -> DataSpec:
            return DataSpec((2,), classes=2)

        def load(self) -> Any:
            return splits(torch.ones(4, 2), torch.arange(4) % 2)

    with pytest.raises(ConfigError, match=f"data=own: load\\(\\) gives {said}"):
        load_checked("own", Own())
