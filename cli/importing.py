"""Ctrl-C ends the command without a traceback while its modules are imported, too. Imports nothing that takes long."""

import gc
import os
import signal
from types import FrameType


def begin() -> None:
    """Lets Ctrl-C end the process at once, up to `end`."""
    if "RANK" not in os.environ:  # torchrun's processes train, and cycles may hold tensors
        gc.set_threshold(50_000, 20, 20)  # what is imported stays: collections take a tenth of a short command
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else ignored, as in the background of a shell
        signal.signal(signal.SIGINT, _leave)


def end() -> None:
    """Lets Ctrl-C raise a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
