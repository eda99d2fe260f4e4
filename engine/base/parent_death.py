"""Imported by the fork server alone, first: while it imports torch, which takes seconds, it dies with its launcher.

Once it has imported everything it sees its launcher go by itself, and fork_server.py unties it: the kernel ties a
process to the thread that started it, which waits for it until then, and may end before the launcher does.
"""

import ctypes
import os
import signal

LAUNCHER = "PACELINE_LAUNCHER"  # environment variable: the process that starts the fork server
PR_SET_PDEATHSIG = 1


def die_with_parent(number: int) -> None:
    """Have the kernel send the signal `number` when the thread that started this process ends; 0: none."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)


if (launcher := os.environ.pop(LAUNCHER, None)) is not None:
    die_with_parent(signal.SIGKILL)
    if os.getppid() != int(launcher):
        os._exit(0)  # it went before we asked
