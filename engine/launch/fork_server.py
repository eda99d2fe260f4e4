"""Imported by the fork server alone, last: once its launcher has gone, it leaves at once.

To take torch down module by module would take it a second, in which frozen workers would live on. See parent_death.py.
"""

import atexit
import encodings.idna  # noqa: F401  each worker's first connection needs it
import os
import sys

from ...compat.fork_server import OURS, SAFE_PATH
from ..base.parent_death import die_with_parent

if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):
    atexit.register(os._exit, 0)
    die_with_parent(0)
    if os.environ.get(SAFE_PATH) == OURS:
        del os.environ[SAFE_PATH]  # programs that a worker starts find their own modules
