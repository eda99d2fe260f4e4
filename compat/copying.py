"""Has copy.deepcopy copy objects that it refuses, such as locks: `threading.Condition._lock`."""

import copyreg
import io
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import SimpleQueue
from types import GeneratorType, ModuleType
from typing import Any


def _same(_: object) -> str:
    return ""  # for copy.deepcopy: the object itself


_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_REDUCED: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((*_FILES, ModuleType, SimpleQueue), _same),
    type(threading.Lock()): lambda _: (threading.Lock, ()),
    type(threading.RLock()): lambda _: (threading.RLock, ()),
    threading.Condition: lambda condition: (threading.Condition, (condition._lock,)),
}


@contextmanager
def with_locks_and_files(generators: bool) -> Generator[None]:
    """Gives copies of copy.deepcopy new locks, and the files, queues and Python modules of the original.

    Args:
        generators: Copies have the generators of the original, too.
    """
    table: dict[Any, Any] = copyreg.dispatch_table
    how = {**_REDUCED, GeneratorType: _same} if generators else _REDUCED
    before = {each: table[each] for each in how if each in table}
    table.update(how)
    try:
        yield
    finally:
        for each in how.keys() - before.keys():
            table.pop(each, None)
        table.update(before)
