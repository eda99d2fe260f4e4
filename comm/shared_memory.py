"""Memory that the processes of one host share: a file without a name, of which nothing can be left behind.

The file (memfd_create) lives as long as a process has it open or mapped. Its maker tells the others its process id and
descriptor, and the kernel lets processes of the same user open it as /proc/PID/fd/N. It takes nothing of /dev/shm,
which is small in many containers. Its pages are reserved before anyone writes: a page that cannot be had while a tensor
is written to ends the process with SIGBUS.
"""

import errno
import mmap
import os
import secrets
from pathlib import Path

from ..compat.full_disk import why_unwritten
from .errors import FabricError, HostMemoryError, PeerLostError

MIB, GIB = 2**20, 2**30


class MemoryFile:
    """A file in memory, made by this process. `place`: what others need to open it."""

    def __init__(self, size: int) -> None:
        """`size`: bytes, at least 1. Raises `HostMemoryError` when there are not that many."""
        name = f"paceline-{secrets.token_hex(8)}"
        free = available()
        if size > free:
            raise _shortage(size, free)
        self._descriptor = os.memfd_create(name)
        try:
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            self.close()
            if error.errno == errno.EFBIG:  # files in memory count, too
                raise HostMemoryError(
                    f"{size / MIB:,.1f} MiB of memory cannot be shared between workers: {why_unwritten(error)}. Raise "
                    "that limit"
                ) from error
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                raise _shortage(size, available()) from error
            raise
        self.memory = mmap.mmap(self._descriptor, size)
        self.place = f"{os.getpid()}/{self._descriptor}/{name}"

    def close(self) -> None:
        """Nobody else can open it from now on; the memory stays for those who have it mapped."""
        os.close(self._descriptor)


class GrowingFile:
    """A file in memory that takes each page when it is written. `place`: what others need to open it."""

    def __init__(self, size: int) -> None:
        """`size`: bytes, at least 1."""
        name = f"paceline-{secrets.token_hex(8)}"
        self.size, self._descriptor = size, os.memfd_create(name)
        os.truncate(self._descriptor, size)
        self.place = f"{os.getpid()}/{self._descriptor}/{name}"

    def write(self, offset: int, data: memoryview) -> None:
        """Raises `OSError` when there is no memory."""
        while data:
            written = os.pwrite(self._descriptor, data[:GIB], offset)
            offset, data = offset + written, data[written:]

    def copied(self) -> mmap.mmap:
        """Returns the file's memory. A page that is written to becomes a copy of this process."""
        return _privately(self._descriptor, self.size)

    def close(self) -> None:
        """Nobody else can open it from now on; the memory stays for those who have it mapped."""
        os.close(self._descriptor)


def open_copied(place: str, size: int) -> mmap.mmap:
    """Returns the memory of another process's `GrowingFile`. A page that is written to becomes a copy of this process.

    Raises `FabricError` when it cannot be reached.
    """
    opened = _open(place)
    try:
        return _privately(opened, size)
    finally:
        os.close(opened)


def _privately(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)


def open_shared(place: str) -> mmap.mmap:
    """The memory that another process made. Raises `FabricError` when it cannot be reached."""
    opened = _open(place)
    try:
        return mmap.mmap(opened, os.fstat(opened).st_size)
    finally:
        os.close(opened)


def _open(place: str) -> int:
    """Opens the file in memory that another process made.

    Raises `FabricError` when it cannot be reached, and `PeerLostError` when that process has ended.
    """
    process, descriptor, name = place.split("/")
    try:
        opened = os.open(f"/proc/{int(process)}/fd/{int(descriptor)}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if _has_ended(int(process)):
            raise PeerLostError(f"process {process} ended before it shared its memory") from error
        raise FabricError(f"memory cannot be shared with process {process}: {error.strerror}") from error
    if not str(Path(f"/proc/self/fd/{opened}").readlink()).startswith(f"/memfd:{name}"):
        os.close(opened)
        raise FabricError(f"memory cannot be shared with process {process}: it is in another container")
    return opened


def _has_ended(process: int) -> bool:
    """Returns True also where its parent has not asked for its status yet."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def available() -> int:
    """Bytes of this host's memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _shortage(size: int, free: int) -> HostMemoryError:
    return HostMemoryError(
        f"{size / MIB:,.1f} MiB of memory cannot be shared between workers: this host has {free / MIB:,.1f} MiB free"
    )
