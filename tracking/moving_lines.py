"""Lines on standard error about something that takes long."""

import sys
import time
from contextlib import suppress

from .visible import visible

ERASED = "\r\x1b[K"  # to the beginning of the line, and nothing behind it
NARROW = 78  # characters of a line that moves
PATIENCE = 15.0  # seconds between two such lines where nothing can move


class MovingLines:
    """Shows lines. On a terminal the next one replaces a line that moves. Elsewhere one of these is shown in 15 s."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, text: str, moves: bool = False) -> None:
        on_terminal = sys.stderr.isatty()
        if moves and not on_terminal:
            if time.monotonic() - self._last < PATIENCE:
                return
            self._last = time.monotonic()
        shown = visible(text)[:NARROW] if moves else visible(text)
        with suppress(OSError):
            end = "" if moves and on_terminal else "\n"
            print(f"{ERASED if on_terminal else ''}{shown}", end=end, file=sys.stderr, flush=True)
