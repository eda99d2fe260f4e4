"""Keeps a child that the user's code forked from ending the run that its parent goes on with."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .failures import traceback_of


@contextmanager
def children_leave() -> Iterator[None]:
    """Ends a child that was forked in the body and leaves it by an exception, with the status that Python would give.

    The child has the run's files and connections, and objects whose destructors wait for threads that it has not.
    """
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() == process:
            raise
        status = 1
        with suppress(OSError):
            if not isinstance(error, SystemExit):
                print(traceback_of(error), file=sys.stderr)
            elif error.code is None or isinstance(error.code, int):
                status = (error.code or 0) & 0xFF
            else:
                print(error.code, file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
