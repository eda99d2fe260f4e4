"""Keeps `bytearray` out of what torch.load(weights_only=True) makes: `_weights_only_unpickler._get_allowed_globals`."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import _weights_only_unpickler

BYTES = "builtins.bytearray"


@contextmanager
def without_bytearray() -> Iterator[None]:
    """Has torch refuse `bytearray`, which a file of 50 bytes makes as long as memory."""
    allowed = _weights_only_unpickler._get_allowed_globals()
    found = allowed.pop(BYTES, None)
    try:
        yield
    finally:
        if found is not None:
            allowed[BYTES] = found
