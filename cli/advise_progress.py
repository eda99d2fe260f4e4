"""The line on a terminal that says how far `paceline advise` is."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..tracking.visible import visible

ERASED = "\r\x1b[K"  # to the beginning of the line, and nothing behind it
NARROW = 78  # characters


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Gives a function that replaces the line; the line is gone afterwards. Without a terminal it does nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return

    def show(text: str) -> None:
        with suppress(OSError):
            print(f"{ERASED}{visible(text)[:NARROW]}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        show("")
