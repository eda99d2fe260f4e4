"""Tests in a process of its own whether the modules that a tracker's helper needs can be imported.

A package that is there may still not be importable: half of it is missing, or another one has the wrong version. The
helper would find that out while the run trains, and the run would end without tracking.
"""

import functools
import os
import subprocess
import sys

from .mlflow import BOUNDS

SECONDS = 120.0  # for one import; a busy machine takes several
STATEMENTS = {
    "tensorboard": "from torch.utils.tensorboard import SummaryWriter",
    "mlflow": "from mlflow.tracking import MlflowClient",
}
_TRY = """
import os, sys
try:
    {statement}
except BaseException as error:
    print(" ".join(f"{{type(error).__name__}}: {{error}}".split()), flush=True)
    os._exit(1)
os._exit(0)
"""


@functools.cache
def failure(tracker: str) -> str:
    """Returns why the import of `tracker` (a key of STATEMENTS) fails; "" if it does not. Tried once in a process."""
    script = _TRY.format(statement=STATEMENTS[tracker])
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", script],
            stdin=subprocess.DEVNULL,
            env=BOUNDS | os.environ,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {SECONDS:.0f} s"
    if done.returncode == 0:
        return ""
    said = done.stdout.strip().splitlines()
    return said[-1] if said else f"it ended with exit status {done.returncode}"
