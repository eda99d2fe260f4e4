"""A lock that the processes of one host share: a robust mutex of the C library in memory that all of them map.

It costs about a microsecond while nobody holds it; the kernel wakes whoever waits, and frees it when its holder dies.
"""

import ctypes
import errno
import mmap
import time

# Of glibc and musl on Linux; see pthread_mutexattr_setpshared(3) and pthread_mutexattr_setrobust(3).
_PROCESS_SHARED = 1
_ROBUST = 1
ROOM = 128  # bytes, more than a pthread_mutex_t or its attributes take on any machine


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class SharedMutex:
    """The mutex in `memory`, which all of them map; made there if `create`.

    Only the thread that acquired it may release it.
    """

    def __init__(self, memory: mmap.mmap, create: bool = False) -> None:
        """`memory`: of at least `ROOM` bytes."""
        self._c = ctypes.CDLL(None)
        self._mutex = ctypes.byref(ctypes.c_char.from_buffer(memory))  # keeps the memory mapped
        if create:
            attributes = ctypes.create_string_buffer(ROOM)
            self._call("pthread_mutexattr_init", attributes)
            self._call("pthread_mutexattr_setpshared", attributes, _PROCESS_SHARED)
            self._call("pthread_mutexattr_setrobust", attributes, _ROBUST)
            self._call("pthread_mutex_init", self._mutex, attributes)

    def acquire(self, seconds: float) -> bool:
        """Returns whether it was free, or became free within that time."""
        until = time.time() + seconds
        whole = int(until)
        status = self._c.pthread_mutex_timedlock(self._mutex, ctypes.byref(Timespec(whole, int((until - whole) * 1e9))))
        if status == errno.EOWNERDEAD:
            self._call("pthread_mutex_consistent", self._mutex)
        elif status not in (0, errno.ETIMEDOUT):
            raise OSError(status, "pthread_mutex_timedlock")
        return status != errno.ETIMEDOUT

    def release(self) -> None:
        self._call("pthread_mutex_unlock", self._mutex)

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._c, function)(*arguments)
        if status:
            raise OSError(status, function)
