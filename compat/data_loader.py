"""The end of a DataLoader's worker processes, asked for."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any


def shut_down(iterator: Iterator[Any]) -> None:
    """End them now. torch does so when nothing refers to `iterator` any more, and a traceback may for long; until then
    its handler of SIGCHLD raises RuntimeError for one that was killed, wherever this process is.
    """
    with suppress(RuntimeError):  # that very error, while it waits for them; it ends them nevertheless
        iterator._shutdown_workers()  # pyright: ignore[reportAttributeAccessIssue]
