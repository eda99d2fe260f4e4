"""Silence for what Optuna warns of, in all threads until the last of them has left."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_silence = warnings.catch_warnings()
_within = 0


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is warned of inside.

    The filters of `warnings` belong to the process, and `warnings.catch_warnings` puts back those that it found: of two
    threads inside of it, the first to leave ends the silence of the other. Here they come back with the last.
    """
    global _silence, _within
    with _lock:
        if _within == 0:
            _silence = warnings.catch_warnings()
            _silence.__enter__()
            warnings.simplefilter("ignore")
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0:
                _silence.__exit__(None, None, None)
