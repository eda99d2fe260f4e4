"""The idx format of the MNIST family, plain or gzipped.

Layout: two zero bytes, a type byte (8: unsigned byte), the number of dimensions, each dimension as a big-endian
uint32, then the values. Source: LeCun, Cortes, Burges, "The MNIST database of handwritten digits".
"""

import gzip
import zlib
from hashlib import sha256
from math import prod
from pathlib import Path

import numpy as np

from ..errors import CorruptDataError
from .files import check_fits, reading


def read_bytes(path: Path, size: int) -> bytes:
    """The first `size` bytes of the file, unpacked where its name ends in .gz.

    Raises CorruptDataError for what is not gzip or breaks off, and as `reading`.
    """
    try:
        with reading(path) as file, gzip.open(file) if path.suffix == ".gz" else file as unpacked:
            return unpacked.read(size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorruptDataError(f"{path} is not a whole gzip file: {error}.") from error


def read_shape(path: Path, dimensions: int) -> tuple[int, ...]:
    """The shape that the file's header states; raises as `read_bytes` and `parse_idx`."""
    return _shape(path, read_bytes(path, 4 + 4 * dimensions), dimensions)


def read_whole(path: Path, dimensions: int) -> bytes:
    """The file's header and values, and one byte more where it has more. Raises as `read_shape`, or ConfigError
    where the values do not fit into memory.
    """
    size = 4 + 4 * dimensions + prod(read_shape(path, dimensions))
    check_fits(path, size, "a file of fewer samples")
    return read_bytes(path, size + 1)


def parse_idx(path: Path, content: bytes, dimensions: int) -> np.ndarray:
    """uint8 [its shape], read-only. Raises CorruptDataError, naming `path`, for any other type, rank or length."""
    shape = _shape(path, content, dimensions)
    values = len(content) - 4 - 4 * dimensions
    if values != prod(shape):
        raise CorruptDataError(f"{path} holds {values} values; its header promises {prod(shape)}.")
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def check_sum(path: Path, content: bytes, expected: str) -> None:
    """Raises CorruptDataError, naming `path`, unless `expected` is the SHA-256 of `content` in hexadecimal."""
    if sha256(content).hexdigest() != expected:
        raise CorruptDataError(f"{path} has not the known SHA-256 sum: it is damaged or another file. Replace it.")


def _shape(path: Path, content: bytes, dimensions: int) -> tuple[int, ...]:
    if len(content) < 4 + 4 * dimensions or content[:4] != bytes([0, 0, 8, dimensions]):
        raise CorruptDataError(f"{path} is not an idx file of unsigned bytes in {dimensions} dimensions.")
    return tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=dimensions, offset=4))
