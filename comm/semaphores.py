"""Semaphores of the C library that the processes of one host share, one for each pair of workers."""

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Callable

from .mutex import Timespec

ROOM = 64  # bytes for each, more than a sem_t takes, so that each has a cache line
SLICE = 0.02  # seconds between two looks whether to stop


class Semaphores:
    """The semaphores in the first `room` bytes of `memory`, where one worker has called `make` before."""

    def __init__(self, memory: mmap.mmap, rank: int, workers: int) -> None:
        self._c = ctypes.CDLL(None, use_errno=True)
        self._memory = ctypes.c_char.from_buffer(memory)  # keeps it mapped
        self._others = [other for other in range(workers) if other != rank]
        self._rank, self._workers = rank, workers

    @staticmethod
    def room(workers: int) -> int:
        return ROOM * workers * workers

    @staticmethod
    def make(memory: mmap.mmap, workers: int) -> None:
        c = ctypes.CDLL(None, use_errno=True)
        for place in range(workers * workers):
            if c.sem_init(ctypes.byref(ctypes.c_char.from_buffer(memory, ROOM * place)), 1, 0) != 0:
                raise OSError(ctypes.get_errno(), "sem_init")

    def pass_together(self, stops: Callable[[], bool]) -> bool:
        """Wait until all are here; whether they came before `stops`."""
        for other in self._others:
            self._c.sem_post(self._of(other, self._rank))
        return all(self._wait(other, stops) for other in self._others)

    def _wait(self, other: int, stops: Callable[[], bool]) -> bool:
        semaphore = self._of(self._rank, other)
        while True:
            until = time.time() + SLICE
            whole = int(until)
            patience = Timespec(whole, int((until - whole) * 1e9))
            if self._c.sem_timedwait(semaphore, ctypes.byref(patience)) == 0:
                return True
            if (error := ctypes.get_errno()) not in (errno.ETIMEDOUT, errno.EINTR):
                raise OSError(error, os.strerror(error))
            if stops():
                return False

    def _of(self, who: int, posted_by: int) -> object:
        """Returns the semaphore at which `who` waits for `posted_by`."""
        return ctypes.byref(self._memory, ROOM * (who * self._workers + posted_by))
