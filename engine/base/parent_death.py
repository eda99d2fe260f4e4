"""Ties a process to its launcher when it is imported, if the launcher's number is in the environment.

The fork server imports this module first, so that it dies with its launcher also while it imports torch, which takes
seconds. A worker of `paceline launch` imports it with paceline.wrap.

Once the fork server has imported everything, it notices by itself that its launcher ends. fork_server.py then unties
it: the kernel ties a process to the thread that started it, which may end before the launcher does.
"""

import ctypes
import os
import signal

from ...compat.torchrun import LAUNCHER

PR_SET_PDEATHSIG = 1


def die_with_parent(number: int) -> None:
    """Have the kernel send the signal `number` when the thread that started this process ends; 0: none."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)


if (launcher := os.environ.pop(LAUNCHER, None)) is not None:
    die_with_parent(signal.SIGKILL)
    if os.getppid() != int(launcher):
        os._exit(0)  # it went before we asked
