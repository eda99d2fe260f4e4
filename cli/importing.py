"""Ctrl-C ends the command without a traceback while its modules are imported, too. Imports nothing that takes long."""

import gc
import os
import signal
import sys
from itertools import pairwise, takewhile
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
STOPPED_BY_CTRL_C = "interrupted; nothing is running any more, and what was written is kept"


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


def wants_json(arguments: list[str]) -> bool:
    """Returns whether JSON was asked for, however wrong the other arguments are. After `launch` they are a script's."""
    before = list(takewhile(lambda word: not word.startswith("--format"), arguments))
    asked = "--format=json" in arguments or ("--format", "json") in pairwise(arguments)
    return asked and "launch" not in before


def _leave(number: int, frame: FrameType | None) -> None:
    """Says what main.py would say, with nothing that may be half imported, such as json."""
    _write(2, STOPPED_BY_CTRL_C)
    if wants_json(sys.argv[1:]):
        message = f'"message": "{STOPPED_BY_CTRL_C}"'
        _write(1, f'{{"code": {INTERRUPTED}, "key": null, "value": null, {message}, "suggestions": []}}')
    os._exit(INTERRUPTED)


def _write(stream: int, line: str) -> None:
    try:
        os.write(stream, f"{line}\n".encode())
    except OSError:  # closed, or nobody reads: the status says it
        pass
