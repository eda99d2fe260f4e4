"""The end of a DataLoader's worker processes, asked for."""

from collections.abc import Iterator
from typing import Any


def shut_down(iterator: Iterator[Any]) -> None:
    """End them now. torch does so when nothing refers to `iterator` any more, which a traceback may do for long; until
    then its handler of SIGCHLD raises RuntimeError, wherever this process is, when any child of it ends.
    """
    iterator._shutdown_workers()  # pyright: ignore[reportAttributeAccessIssue]
