"""Arrays in files, of which the bytes of a batch are read when it is wanted: `.npy`, `.npz`, safetensors.

Only headers are read beforehand, and nothing is unpickled. An archive (`.npz`) is mapped where its members are stored
as they are (`numpy.savez`), and read whole where they are compressed (`numpy.savez_compressed`).
"""

import json
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import CorruptDataError, TaskConfigError
from .files import open_data

SUFFIXES = (".npy", ".npz", ".safetensors")
_SAFETENSORS = {  # https://huggingface.co/docs/safetensors: an eight byte length, JSON, then the bytes of all tensors
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
_LONGEST_HEADER = 100_000_000  # bytes; safetensors' own bound
_LOCAL = struct.Struct("<4s5H3I2H")  # the header before a member of a zip archive


@dataclass(frozen=True)
class Array:
    """Where an array is, and what it looks like. `offset`: None where it is compressed."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None
    fortran: bool = False
    bfloat16: bool = False  # numpy has none: its bits are read as uint16

    @property
    def is_numbers(self) -> bool:
        return self.dtype.kind in "biuf"

    def read(self) -> "Rows":
        """Mapped into memory, read only; of what is compressed, in memory."""
        if self.offset is None:
            with np.load(self.path, allow_pickle=False) as archive:
                return Rows(archive[self.name], False)
        if 0 in self.shape:
            return Rows(np.zeros(self.shape, self.dtype), False)
        # not copy on write: that would take as much memory to be promised
        order = "F" if self.fortran else "C"
        return Rows(np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order), self.bfloat16)


class Rows:
    """An array that may be mapped from a file: its rows are copied when they are asked for."""

    def __init__(self, array: np.ndarray, bfloat16: bool) -> None:
        self._array, self._bfloat16 = array, bfloat16

    def __call__(self, numbers: Tensor | slice) -> Tensor:
        """[k] or a slice -> [k, ...]."""
        found = self._array[numbers if isinstance(numbers, slice) else numbers.numpy()]
        native = found.astype(found.dtype.newbyteorder("="), copy=isinstance(numbers, slice))
        tensor = torch.from_numpy(native)
        return tensor.view(torch.bfloat16) if self._bfloat16 else tensor


def arrays_of(path: Path) -> dict[str, Array]:
    """By name: those of a file, or of the `.npy` files of a folder. Raises MissingDataError, CorruptDataError, or
    TaskConfigError for a file of another kind.
    """
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        if not files:
            raise TaskConfigError(f"{path} has no .npy files; must have one for each array")
        return {file.stem: _npy(file, file.stem, 0, file.stat().st_size) for file in files}
    if path.suffix not in SUFFIXES:
        raise TaskConfigError(f"{path}: must be a .npz or .safetensors file, or a folder of .npy files")
    try:
        if path.suffix == ".npy":
            return {path.stem: _npy(path, path.stem, 0, _size(path))}
        return _npz(path) if path.suffix == ".npz" else _safetensors(path)
    except (zipfile.BadZipFile, struct.error, EOFError) as error:
        raise CorruptDataError(f"{path} is damaged: {error}") from error


def _size(path: Path) -> int:
    with open_data(path) as file:
        return file.seek(0, 2)


def _npy(path: Path, name: str, start: int, end: int) -> Array:
    """The array whose header begins at `start`, and whose bytes must end before `end`."""
    with open_data(path) as file:
        file.seek(start)
        shape, fortran, dtype = _header(path, name, file)
        offset = file.tell()
    array = Array(path, name, shape, dtype, offset, fortran)
    if array.is_numbers and offset + dtype.itemsize * int(np.prod(shape)) > end:
        raise CorruptDataError(f"{path}: {name} is cut short: its header says {list(shape)} of {dtype}")
    return array


def _header(path: Path, name: str, file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, EOFError, OSError) as error:
        raise CorruptDataError(f"{path}: {name} is no array of NumPy: {' '.join(str(error).split())}") from error
    return shape, fortran, dtype


def _npz(path: Path) -> dict[str, Array]:
    found: dict[str, Array] = {}
    with open_data(path) as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.compress_type == zipfile.ZIP_STORED:
                file.seek(member.header_offset)
                local = _LOCAL.unpack(file.read(_LOCAL.size))
                start = member.header_offset + _LOCAL.size + local[9] + local[10]  # behind its name and extra field
                found[name] = _npy(path, name, start, start + member.file_size)
            else:
                with archive.open(member) as packed:
                    shape, fortran, dtype = _header(path, name, packed)
                found[name] = Array(path, name, shape, dtype, None, fortran)
    return found


def _safetensors(path: Path) -> dict[str, Array]:
    with open_data(path) as file:
        (length,) = struct.unpack("<Q", file.read(8))
        end = file.seek(0, 2)
        if length > min(_LONGEST_HEADER, end - 8):
            raise CorruptDataError(f"{path} is no safetensors file: its header would be {length:,} bytes long")
        file.seek(8)
        try:
            header = json.loads(file.read(length))
            told = {name: each for name, each in header.items() if name != "__metadata__"}
            entries = [
                (name, each["dtype"], tuple(each["shape"]), *each["data_offsets"]) for name, each in told.items()
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(f"{path} is no safetensors file: {error}") from error
    found: dict[str, Array] = {}
    for name, kind, shape, first, last in entries:
        if kind not in _SAFETENSORS:
            raise TaskConfigError(f"{path}: {name} is of {kind}; must be one of {', '.join(_SAFETENSORS)}")
        dtype = np.dtype(_SAFETENSORS[kind])
        if last - first != dtype.itemsize * int(np.prod(shape)) or first < 0 or 8 + length + last > end:
            raise CorruptDataError(f"{path}: {name} is cut short, or its header is wrong")
        found[name] = Array(path, name, shape, dtype, 8 + length + first, bfloat16=kind == "BF16")
    return found
