"""Ends a process without destroying what libraries still use."""

import atexit
import os
import sys
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """Runs what is registered with atexit, and ends the process.

    The interpreter's own end would stop threads of libraries amid C++ code, which aborts the process (exit status 134).
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
