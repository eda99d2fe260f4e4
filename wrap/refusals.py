"""A refusal that a script does not catch ends it with what was wrong, in place of a traceback of ours.

It stays an exception: a script may catch it, and a notebook or an interactive interpreter shows it as any other.
Nor has one that Ctrl-C ended anything to say: the run has told it, and of launched workers there may be many.
"""

import sys
from types import TracebackType

from ..compat.leaving import leave
from ..engine.base.started import was_started
from ..tracking.visible import visible_lines
from .stopping import STATUS, Stopped, is_interactive


class _Hook:
    """A `sys.excepthook`: the exception of the last refusal ends the process with its status."""

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.status = 0
        self.abandoned = False  # a run that others took part in ended amid a step
        self.before = sys.__excepthook__

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Stopped) or (isinstance(error, KeyboardInterrupt) and was_started()):
            raise SystemExit(STATUS)
        if error is not self.refusal:
            self.before(kind, error, trace)
            if self.abandoned and was_started():
                leave(1)
            return
        print(visible_lines(str(error)), file=sys.stderr, flush=True)
        raise SystemExit(self.status)  # from an excepthook it is the process's exit status


_hook = _Hook()


def say_where_uncaught(refusal: Exception, status: int) -> None:
    """Call it before `refusal` is raised. `status`: the exit status of the script that does not catch it."""
    if not is_interactive():
        _hook.refusal, _hook.status = refusal, status
        _install()


def leave_at_once() -> None:
    """A launched worker whose exception nobody catches ends at once: some of its messages are still under way."""
    _hook.abandoned = True


def say_nothing_of_ctrl_c() -> None:
    """Suppresses the traceback of `Stopped`, and in a worker that a launcher started of any KeyboardInterrupt."""
    if not is_interactive():
        _install()


def _install() -> None:
    if sys.excepthook is not _hook:
        _hook.before, sys.excepthook = sys.excepthook, _hook
