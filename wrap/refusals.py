"""An error of ours that a script does not catch ends it with what was wrong, in place of a traceback of ours.
So does an error about memory, disk space or another resource that this machine lacks, whoever raised it.

It stays an exception: a script may catch it, and a notebook or an interactive interpreter shows it as any other.
Nor has one that Ctrl-C ended anything to say: the run has told it, and of launched workers there may be many.

Launched workers often fail alike, or since another one has failed. The first worker of a host that has something to say
says it, and the others are silent. A worker that only lost a peer, or heard of another's error, waits first: the
launcher ends it by SIGTERM once the peer has ended.
"""

import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from ..comm.errors import PeerLostError
from ..comm.store import StoreGoneError
from ..compat.leaving import leave
from ..compat.torchrun import SAID
from ..engine.base.failures import exit_code_of, lack_of, place_of, words_of
from ..engine.base.started import was_started
from ..tracking.visible import visible_lines
from .errors import ElsewhereError
from .stopping import STATUS, Stopped, is_interactive

WAIT = 4.0  # seconds that a launcher may take to end a worker that lost a peer
FILE = "TORCHELASTIC_ERROR_FILE"  # of torchrun, for each worker, in a folder of the host's workers


class _Hook:
    """A `sys.excepthook`: an error of ours ends the process with its message and its status."""

    def __init__(self) -> None:
        self.abandoned = False  # a run that others took part in ended amid a step
        self.before = sys.__excepthook__
        self.first: Callable[[], None] = lambda: None

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.first()
        if isinstance(error, Stopped) or (isinstance(error, KeyboardInterrupt) and was_started()):
            raise SystemExit(STATUS)
        if isinstance(error, StoreGoneError):  # worker 0 has the store, and ended
            error = PeerLostError(f"a worker lost worker 0: {error}")
        status, said = exit_code_of(error), str(error)
        if status is None and (lack := lack_of(error)) is not None:
            status, said = lack.exit_code, f"{words_of(lack)} ({place_of(error)})"
        if status is None:
            self.before(kind, error, trace)
            if self.abandoned and was_started():
                leave(1)
            return
        if was_started():
            time.sleep(WAIT * isinstance(error, PeerLostError | ElsewhereError))
            _say_once(visible_lines(said))
            leave(status)
        print(visible_lines(said), file=sys.stderr, flush=True)
        raise SystemExit(status)  # from an excepthook it is the process's exit status


def _say_once(said: str) -> None:
    """Prints `said`, unless another worker of this host has spoken. Where torchrun has no folder, each speaks.

    The lock is held until the words are printed: the launcher may end their worker as soon as a silent one has ended.
    """
    if not (file := os.environ.get(FILE)):
        print(said, file=sys.stderr, flush=True)
        return
    with Path(file).parents[1].joinpath(SAID).open("a") as spoken:
        fcntl.flock(spoken, fcntl.LOCK_EX)
        if os.fstat(spoken.fileno()).st_size == 0:
            print(said, file=sys.stderr, flush=True)
            spoken.write(said)
            spoken.flush()


_hook = _Hook()


def leave_at_once() -> None:
    """A launched worker whose exception nobody catches ends at once: some of its messages are still under way."""
    _hook.abandoned = True


def say_no_traceback(first: Callable[[], None] | None = None) -> None:
    """Has uncaught errors of ours say their message alone. So has `Stopped`, and in a worker that a launcher started
    any KeyboardInterrupt; these say nothing.

    Args:
        first: is called before anything is said of an error.
    """
    if first is not None:
        _hook.first = first
    if not is_interactive() and sys.excepthook is not _hook:
        _hook.before, sys.excepthook = sys.excepthook, _hook
