"""Tells whether a run goes on: its launcher holds a lock on metrics.jsonl, which the kernel lets go when the launcher
ends.

A reader takes the lock for a moment if nobody has it. No process id is compared, so that it works in containers and,
where the file system has locks, from other hosts.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import RunNameError

TRIES, PAUSE = 50, 0.01  # seconds between; somebody asks just now
_descriptors: set[int] = set()  # those of `held` in this process


def _let_go() -> None:
    """A forked child, such as a DataLoader's process, may outlive the launcher, and would keep its lock."""
    while _descriptors:
        os.close(_descriptors.pop())


os.register_at_fork(after_in_child=_let_go)


def goes_on(name: str) -> RunNameError:
    return RunNameError(
        f"run {name} goes on, and cannot be resumed beside itself. Choose paceline watch {name}, or end it first."
    )


@contextmanager
def held(path: Path) -> Iterator[None]:
    """The run in whose directory the file `path` lies goes on. Without locks, or a file, it is only not seen to.

    Raises RunNameError where another command has it: two would write to one directory.
    """
    try:
        descriptor, how = _opened(path)
    except OSError:
        yield
        return
    _descriptors.add(descriptor)
    try:
        if not any(lock(descriptor, how) or time.sleep(PAUSE) for _ in range(TRIES)):
            raise goes_on(path.parent.name)
        yield
    finally:
        if descriptor in _descriptors:
            _descriptors.remove(descriptor)
            os.close(descriptor)


def is_held(path: Path) -> bool:
    """Returns whether somebody in any process, this one too, has it `held`. False without locks: nobody can say."""
    try:
        descriptor, how = _opened(path)
    except OSError:
        return False
    try:
        for i in range(3):  # another may ask at the same time
            if lock(descriptor, how):
                return False
            time.sleep(PAUSE if i < 2 else 0)
        return True
    finally:
        os.close(descriptor)


def _opened(path: Path) -> tuple[int, int]:
    """Returns a descriptor, and the strictest lock that it can have: NFS locks what is open for reading for reading."""
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | flags), fcntl.LOCK_EX
    except OSError:
        return os.open(path, os.O_RDONLY | flags), fcntl.LOCK_SH


def lock(descriptor: int, how: int) -> bool:
    """Returns whether nobody else has the lock. True where the file system has no locks, too: nobody can say."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
