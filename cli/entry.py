"""The `paceline` command. Ctrl-C ends it without a traceback while its modules are imported, too."""

import gc
import os
import signal
from types import FrameType


def main() -> None:
    """Imports the commands and runs the one that sys.argv names."""
    if "RANK" not in os.environ:  # torchrun's processes train, and cycles may hold tensors
        gc.set_threshold(50_000, 20, 20)  # what is imported stays: collections take a tenth of a short command
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:  # else it is ignored, as in the background of a shell
        signal.signal(signal.SIGINT, _leave)
    from .main import main as run

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
