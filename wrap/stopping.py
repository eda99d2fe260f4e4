"""Signals while a script trains.

After Ctrl-C all workers leave before the same step, and the run says that it was interrupted. After SIGTERM, which a
launcher sends once a worker has failed, this worker leaves at once, and the run says so.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_OF_LOADERS = "torch.utils.data._utils.signal_handling"
STATUS = 128 + signal.SIGINT
SAID = b"\nstopping: workers end together before one of their next steps; once more to leave at once\n"


class Stopped(KeyboardInterrupt):
    """Ends the script's loop once the run has been written. A script that does not catch it ends with STATUS."""


class CtrlC:
    """Handles SIGINT until `let_go`: the first calls `request_stop`, and the second raises KeyboardInterrupt as ever.

    Only in the main thread of a program, where nobody else handles SIGINT: an interactive interpreter stays as it was.
    """

    def __init__(self, request_stop: Callable[[], None], says: bool) -> None:
        """`says`: whether it tells the person that it was heard."""
        self._request_stop, self._says = request_stop, says
        self._before = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        self._handles = is_main and not is_interactive() and self._before is signal.default_int_handler
        self._process = os.getpid()
        if self._handles:
            signal.signal(signal.SIGINT, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.let_go()
        if os.getpid() != self._process:  # a forked child, such as a DataLoader's: the parent goes on to its next step
            return
        self._request_stop()
        if self._says:
            os.write(2, SAID)  # print() may be what was interrupted

    def let_go(self) -> None:
        if self._handles:
            self._handles = False
            signal.signal(signal.SIGINT, self._before)


class ScriptTerminated(SystemExit):
    """SIGTERM came: it ends the script with the status of the signal, and leaves each `with` block on its way."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "SIGTERM, as of a launcher that is stopped"


class Unended(SystemExit):
    """The script ended, or called `sys.exit`, and left its run open."""

    def __str__(self) -> str:
        return "the script ended without run.close()"


class Sigterm:
    """Handles SIGTERM until `let_go`: it raises `ScriptTerminated` in the main thread, unless the script handles it
    itself.
    """

    def __init__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        self._handles = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        self._process = os.getpid()
        self.raised: ScriptTerminated | None = None
        if self._handles:
            signal.signal(signal.SIGTERM, self._leave)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child ends as if there was no run
            self.let_go()
            signal.raise_signal(number)
        # a launcher ends a DataLoader's processes, too, of which torch would raise an error wherever this one is
        if getattr(signal.getsignal(signal.SIGCHLD), "__module__", None) == _OF_LOADERS:
            signal.signal(signal.SIGCHLD, lambda *_: None)  # one may be pending, for which there must be a handler
        self.raised = ScriptTerminated()
        raise self.raised

    def let_go(self) -> None:
        if self._handles:
            self._handles = False
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_interactive() -> bool:
    """Returns whether a person types statements, in a notebook too."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)
