"""Arrays in files, of which the bytes of a batch are read when it is wanted: `.npy`, `.npz`, safetensors.

Only headers are read beforehand, and nothing is unpickled. An archive (`.npz`) is mapped where its members are stored
as they are (`numpy.savez`), after one pass that checks their CRC. It is read whole where they are compressed
(`numpy.savez_compressed`).
"""

import math
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from ...conf.errors import ConfigError
from ..errors import CorruptDataError, MissingDataError, SampleError
from .files import are_shown, check_fits, open_data

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
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
    "F8_E4M3": "V1",  # NumPy has no such numbers
    "F8_E5M2": "V1",
    "C64": "<c8",
}
_CHUNK = 1 << 20
_LOCAL = struct.Struct("<4s5H3I2H")  # the header before a member of a zip archive


@dataclass(frozen=True)
class Array:
    """The file and the form of an array. `offset`: None where it is compressed."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None
    fortran: bool = False
    bfloat16: bool = False  # numpy has none: its bits are read as uint16
    member: str | None = None  # of an archive that stores it as it is

    @property
    def is_numbers(self) -> bool:
        return self.dtype.kind in "biuf" and self.dtype.itemsize <= 8  # torch has no longer floats

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> "MappedRows":
        """Mapped into memory, read only; of what is compressed, in memory. Raises CorruptDataError."""
        if self.offset is None:
            check_fits(self.path, self.nbytes, "numpy.savez, which does not pack")
            with _blaming(self.path), open_data(self.path) as file, np.load(file, allow_pickle=False) as archive:
                return MappedRows(self, archive[self.name])
        if self.member is not None:
            told = self.path.stat()
            _check_crc(self.path, self.member, told.st_mtime_ns, told.st_size)
        if 0 in self.shape:
            return MappedRows(self, np.zeros(self.shape, self.dtype))
        # not copy on write: that would take as much memory to be promised
        order = "F" if self.fortran else "C"
        return MappedRows(self, np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order))


@lru_cache(maxsize=256)  # both splits are read from one file
def _check_crc(path: Path, member: str, changed: int, size: int) -> None:
    """Reads a member of an archive once, as zipfile compares its CRC at the end. Raises CorruptDataError.

    `changed`, `size`: a file that has changed is read again.
    """
    with _blaming(path), open_data(path) as file, zipfile.ZipFile(file) as archive, archive.open(member) as stored:
        while stored.read(_CHUNK):
            pass


class MappedRows:
    """An array that may be mapped from a file: its rows are copied when they are asked for."""

    def __init__(self, of: Array, array: np.ndarray) -> None:
        self._of, self._array = of, array

    def __call__(self, numbers: Tensor | slice) -> Tensor:
        """[k] or a slice -> [k, ...]. Raises SampleError for a whole number that torch cannot hold."""
        found = self._array[numbers if isinstance(numbers, slice) else numbers.numpy()]
        native = found.astype(found.dtype.newbyteorder("="), copy=isinstance(numbers, slice))
        if self._of.bfloat16:
            return torch.from_numpy(native).view(torch.bfloat16)
        return torch.from_numpy(signed(native, f"{self._of.path}: {self._of.name}"))


def signed(values: np.ndarray, what: str) -> np.ndarray:
    """Returns whole numbers without a sign as int64, bytes as they are. Raises SampleError for one of 2^63 or more."""
    if values.dtype.kind != "u" or values.dtype.itemsize == 1:
        return values
    if values.dtype.itemsize == 8 and values.size and values.max() > np.iinfo(np.int64).max:
        raise SampleError(f"{what} has {values.max()}; must be less than 2^63")
    return values.astype(np.int64)


def arrays_of(path: Path) -> dict[str, Array]:
    """Returns arrays by name: those of a file, or of the `.npy` files of a folder. Raises MissingDataError,
    CorruptDataError, or ConfigError for a file of another kind.
    """
    if path.is_dir():
        files = are_shown(path.glob("*.npy"))
        if not files:
            raise ConfigError(f"{path} has no .npy files; must have one for each array")
        return {file.stem: _npy(file, file.stem, 0, _size(file)) for file in files}
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: must be a .npz or .safetensors file, or a folder of .npy files")
    with _blaming(path):
        if path.suffix.lower() == ".npy":
            return {path.stem: _npy(path, path.stem, 0, _size(path))}
        return _npz(path) if path.suffix.lower() == ".npz" else _safetensors(path)


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file makes of its reader into CorruptDataError."""
    try:
        yield
    except (CorruptDataError, MissingDataError, ConfigError):
        raise
    except MemoryError as error:
        raise ConfigError(f"{path} is larger than memory once it is unpacked; save it with numpy.savez") from error
    except Exception as error:  # BadZipFile, zlib.error, NotImplementedError, OSError, and what is yet to come
        raise CorruptDataError(f"{path} is damaged: {type(error).__name__}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


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
    if array.is_numbers and offset + array.nbytes > end:
        raise CorruptDataError(f"{path}: {name} is cut short: its header says {list(shape)} of {dtype}")
    return array


def _header(path: Path, name: str, file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (
        Exception
    ) as error:  # the header is an expression of Python: SyntaxError, TokenError, MemoryError, and others
        raise CorruptDataError(f"{path}: {name} is no array of NumPy: {_line(error)}") from error
    if any(size < 0 for size in shape):
        raise CorruptDataError(f"{path}: {name} is no array of NumPy: its header says {list(shape)}")
    return shape, fortran, dtype


def _npz(path: Path) -> dict[str, Array]:
    found: dict[str, Array] = {}
    size = _size(path)
    with open_data(path) as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise CorruptDataError(f"{path} has two arrays of the name {name}")
            if member.compress_type == zipfile.ZIP_STORED:
                file.seek(member.header_offset)
                local = _LOCAL.unpack(file.read(_LOCAL.size))
                start = member.header_offset + _LOCAL.size + local[9] + local[10]  # behind its name and extra field
                stored = _npy(path, name, start, min(start + member.file_size, size))
                found[name] = replace(stored, member=member.filename)
            else:
                with archive.open(member) as packed:
                    shape, fortran, dtype = _header(path, name, packed)
                    start = packed.tell()
                found[name] = array = Array(path, name, shape, dtype, None, fortran)
                if array.is_numbers and start + array.nbytes != member.file_size:
                    raise CorruptDataError(
                        f"{path}: {name} is not as long as its header says: {list(shape)} of {dtype}"
                    )
    return found


def _safetensors(path: Path) -> dict[str, Array]:
    """Reads the header by the library that reads weights; arrays lie one behind the other, in its order."""
    size = _size(path)
    found: dict[str, Array] = {}
    with open_data(path) as file:
        (length,) = struct.unpack("<Q", file.read(8))
        offset = 8 + length
        with safe_open(f"/dev/fd/{file.fileno()}", framework="numpy") as opened:
            for name in opened.offset_keys():  # one behind the other, without a gap
                told = opened.get_slice(name)
                kind, shape = told.get_dtype(), tuple(told.get_shape())
                if kind not in _SAFETENSORS:
                    raise ConfigError(f"{path}: {name} is of {kind}; must be one of {', '.join(_SAFETENSORS)}")
                dtype = np.dtype(_SAFETENSORS[kind])
                found[name] = Array(path, name, shape, dtype, offset, bfloat16=kind == "BF16")
                offset += found[name].nbytes
    if offset != size:
        raise CorruptDataError(f"{path} is damaged: it has {size:,} bytes, and its header says {offset:,}")
    return dict(sorted(found.items()))
