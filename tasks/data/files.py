"""Opens the files that data sets are in: regular ones alone. A pipe would be waited for, and a device may never end."""

import errno
import gzip
import hashlib
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path

from ...conf.errors import ConfigError
from ..errors import CorruptDataError, MissingDataError


def open_data(path: Path) -> BufferedReader:
    """Raises MissingDataError, or ConfigError for what is no regular file, without waiting for it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: the name has a NUL in it
        if isinstance(error, OSError) and error.errno == errno.ENXIO:  # a socket
            raise not_regular(path) from None
        raise MissingDataError(f"{path} cannot be read: {getattr(error, 'strerror', error)}.") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise not_regular(path)
    return os.fdopen(descriptor, "rb")


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """Opens the file as `open_data` does. Raises MissingDataError, too, where the disk fails while it is read."""
    with open_data(path) as file:
        try:
            yield file
        except gzip.BadGzipFile:  # is an OSError, and no fault of the disk
            raise
        except OSError as error:
            raise MissingDataError(f"{path} cannot be read: {error.strerror or error}.") from error


def asked(path: str | None, key: str = "path") -> Path | None:
    """Raises ConfigError for an empty path, which would be the current folder."""
    if path is not None and not path.strip():
        raise ConfigError(f"data.{key}={path}: is empty. Name a file or a folder; null leaves it out.")
    return None if path is None else Path(path).expanduser()


def is_there(path: Path) -> bool:
    """Returns whether the name exists. A name that no file may have does not."""
    try:
        return path.exists()
    except OSError:
        return False


def check_readable(how_to_get: str, *paths: Path) -> None:
    """Raises as `open_data`; for what is not there, with the way to get it."""
    for path in paths:
        try:
            open_data(path).close()
        except MissingDataError as error:
            what = f"{path} is not a file." if isinstance(error.__cause__, FileNotFoundError) else str(error)
            raise MissingDataError(f"{what} {how_to_get}") from None


def folder_of(package: str) -> str | None:
    """Returns where a package is installed, without importing it; None: it is not."""
    found = find_spec(package)
    return None if found is None or found.origin is None else str(Path(found.origin).parent)


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a whole file, which is not held in memory. Raises as `reading`."""
    with reading(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def are_shown(files: Iterable[Path]) -> list[Path]:
    """Returns the files, sorted, without hidden ones such as `._x.npy`, which a copy from a Mac leaves."""
    return sorted(file for file in files if not file.name.startswith("."))


def check_fits(path: Path, size: int, instead: str) -> None:
    """Raises ConfigError where `size` bytes, which a packed file unpacks to, are more than this host's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise ConfigError(
            f"{path}: takes {size / 2**30:,.1f} GiB once it is unpacked, and this host has {memory / 2**30:,.1f} GiB. "
            f"Choose {instead}."
        )


def unpacked(path: Path, most: int | None = None) -> bytes:
    """Returns the content of a .gz file, or its first `most` bytes. Raises CorruptDataError, and as `reading` and
    `check_fits`.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        with reading(path) as file, gzip.open(file) as opened:
            while (piece := opened.read(1 << 20 if most is None else most - size)) and (most is None or size < most):
                pieces.append(piece)
                size += len(piece)
                check_fits(path, 2 * size, "a file that is not packed")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorruptDataError(f"{path} is damaged: {error}") from error
    return b"".join(pieces)


def not_regular(path: Path) -> ConfigError:
    return ConfigError(f"{path} is a directory, a pipe, a socket or a device; data are read from regular files alone.")
