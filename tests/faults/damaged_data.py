"""Files of data with random bytes changed: each is planned, or refused by name; no traceback, no hang, no signal."""

import json
import random
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from .corruptions import DAMAGES
from .judge import Case, WrongError
from .loaded import answer

EXPECTED = {0, 2, 7}
N = 40
CHANCE = np.random.default_rng(0)
COLUMNS: dict[str, Any] = {
    "a": CHANCE.normal(size=N).round(4).tolist(),
    "b": CHANCE.integers(100, size=N).tolist(),
    "kind": ["no", "yes"] * (N // 2),
}
ARRAYS = {"x": CHANCE.normal(size=(N, 3)), "street": CHANCE.integers(8, size=N), "targets": np.arange(N) % 2}
Write = Callable[[Path], tuple[Path, Path]]  # a folder -> what data.path names, and the file to be damaged


def _csv(folder: Path) -> tuple[Path, Path]:
    rows = [",".join(COLUMNS), *(",".join(map(str, row)) for row in zip(*COLUMNS.values(), strict=True))]
    (folder / "x.csv").write_text("\n".join(rows))
    return folder / "x.csv", folder / "x.csv"


def _parquet(folder: Path) -> tuple[Path, Path]:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(COLUMNS), folder / "x.parquet")
    return folder / "x.parquet", folder / "x.parquet"


def _npz(folder: Path, save: Any = np.savez) -> tuple[Path, Path]:
    save(folder / "x.npz", **ARRAYS)
    return folder / "x.npz", folder / "x.npz"


def _safetensors(folder: Path) -> tuple[Path, Path]:
    safetensors.numpy.save_file(ARRAYS, folder / "x.safetensors")
    return folder / "x.safetensors", folder / "x.safetensors"


def _npy(folder: Path) -> tuple[Path, Path]:
    (folder / "x").mkdir()
    for name, array in ARRAYS.items():
        np.save(folder / "x" / f"{name}.npy", array)
    return folder / "x", folder / "x" / "x.npy"


def _saved(file: str, folder: Path) -> tuple[Path, Path]:
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        {
            "x": datasets.List(datasets.Value("float32")),
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    rows = {"x": ARRAYS["x"].tolist(), "text": COLUMNS["kind"], "label": ARRAYS["targets"].tolist()}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(folder / "x"))
    return folder / "x", folder / "x" / file


def _svmlight(folder: Path) -> tuple[Path, Path]:
    lines = [f"{i % 2} 1:{row[0]:.3f} 3:{row[2]:.3f}" for i, row in enumerate(ARRAYS["x"])]
    (folder / "x.svm").write_text("\n".join(lines))
    return folder / "x.svm", folder / "x.svm"


RUN = ("train", "hardware=virtual", "hardware.workers=1", "epochs=1", "tracking=none", "batch_size=16")
TABLE = ("data=table", "data.targets=kind", "model=linear")
NUMBERS = ("data=arrays", "data.inputs=x", "model=linear")
SAVED = ("data=hugging_face", "data.inputs=x", "model=linear")
KINDS: dict[str, tuple[Write, tuple[str, ...]]] = {
    "CSV": (_csv, TABLE),
    "Parquet": (_parquet, TABLE),
    ".npz": (_npz, NUMBERS),
    "packed .npz": (partial(_npz, save=np.savez_compressed), NUMBERS),
    "safetensors": (_safetensors, NUMBERS),
    ".npy": (_npy, NUMBERS),
    "Arrow": (partial(_saved, "data-00000-of-00001.arrow"), SAVED),
    "state.json": (partial(_saved, "state.json"), SAVED),
    "dataset_info.json": (partial(_saved, "dataset_info.json"), SAVED),
    "svmlight": (
        _svmlight,
        ("data=svmlight", "data.features=9", "data.nonzeros=5", "model=sparse_logistic_regression"),
    ),
}


def _bytes(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 3, 8])):
        content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content)


def _lying_header(path: Path, chance: random.Random) -> None:
    """Sizes that wrap around, are negative, no numbers, or need more than there is."""
    size = chance.choice(["2147483648, 8589934592", "-4, -3", "4.0", "'4'", "1" + "0" * 30, "(" * 3000])
    if path.suffix == ".npy":
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size},)}}\n".encode()
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(99))
    elif path.suffix == ".safetensors":
        header = f'{{"x": {{"dtype": "F32", "shape": [{size}], "data_offsets": [0, 16]}}}}'.encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    elif path.suffix == ".npz":
        with zipfile.ZipFile(path, "w", chance.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
            for name in ("x", "targets"):
                header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size},)}}\n".encode()
                archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    else:
        _bytes(path, chance)


def _twice(path: Path, chance: random.Random) -> None:
    """The first line of a text once more: names of columns, for instance, as a row."""
    content = path.read_bytes()
    path.write_bytes(content.split(b"\n", 1)[0] + b"\n" + content)


def _other_file(path: Path, chance: random.Random) -> None:
    """A saved data set names another file; all else is garbled."""
    if path.name != "state.json":
        DAMAGES["other bytes"](path, chance)
        return
    told = json.loads(path.read_text())
    told["_data_files"] = [{"filename": chance.choice(["/dev/zero", "../../etc/passwd", "", ".", "http://x/y", 1])}]
    path.write_text(json.dumps(told))


def _other_packing(path: Path, chance: random.Random) -> None:
    """An archive says that its members are packed in a way that nobody knows; all else is garbled."""
    if path.suffix != ".npz":
        DAMAGES["other bytes"](path, chance)
        return
    content, at, method = bytearray(path.read_bytes()), -1, struct.pack("<H", chance.choice([1, 7, 99]))
    for mark, place in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):  # in the directory, and before each member
        while (at := content.find(mark, at + 1)) >= 0:
            content[at + place : at + place + 2] = method
    path.write_bytes(content)


OWN = {
    "bytes changed": _bytes,
    "sizes that lie": _lying_header,
    "a line twice": _twice,
    "another file": _other_file,
    "another packing": _other_packing,
}


def cases(chance: random.Random, count: int) -> list[Case]:
    """Returns each damage of each kind once, and random ones."""
    every = OWN | DAMAGES
    more = [*(["bytes changed"] * len(every)), *every]
    drawn = ((chance.choice([*KINDS]), chance.choice(more)) for _ in range(count))
    return [
        Case(f"damaged data, {kind}", f"{damage} ({number})", partial(_check, kind, damage, number))
        for number, (kind, damage) in enumerate(islice(chain(product(KINDS, every), drawn), count))
    ]


def _check(kind: str, damage: str, number: int, place: Path) -> None:
    write, words = KINDS[kind]
    path, victim = write(place)
    (OWN | DAMAGES)[damage](victim, random.Random(number))
    status, said = answer([*RUN, *words, f"data.path={path}"], place)
    if status == 6 and "the batch itself holds values that are NaN or infinite" in said:
        return  # what was changed is a value
    if status not in EXPECTED | ({3} if damage == "gone" else set()):
        raise WrongError(f"exit status {status}: {said[-500:]}")
    if status and str(place) not in said:
        raise WrongError(f"does not name the file: {said[-500:]}")
    if "Traceback" in said:
        raise WrongError(f"a traceback: {said[-500:]}")
