"""Ctrl-C and SIGTERM before there are workers to be stopped: they raise as ever, and are noted.

What a handler raises in a destructor, or in a weakref's callback as each import has one, Python prints and drops.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_came: list[int] = []


@contextmanager
def noted() -> Iterator[None]:
    """Meanwhile those that are handled in Python are noted as well, in the main thread, which alone can have them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, _noting(handler))
    try:
        yield
    finally:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, handler)
        _came.clear()


def _noting(handler: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
    def note(number: int, frame: FrameType | None) -> None:
        _came.append(number)
        handler(number, frame)

    return note


def lost() -> int:
    """The last that was noted, for whoever goes on nevertheless; 0 where none was."""
    return _came[-1] if _came else 0
