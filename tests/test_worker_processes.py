"""How tests start worker processes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ASKED = """
from worker_processes import PRELOADED, preload_in_every_fork_server
from paceline.testing.processes import run_workers
from test_worker_processes import imported
preload_in_every_fork_server()
for modules in run_workers(2, imported):
    assert set(PRELOADED) <= set(modules), sorted(set(PRELOADED) - set(modules))
"""


def imported(comm: Any) -> list[str]:
    return sorted(sys.modules)


@pytest.mark.slow
@pytest.mark.dist
def test_workers_have_all_imported_before_their_time_runs_whoever_starts_them() -> None:
    """Six that import torch at once, on busy cores, take longer than any of them waits for another.

    Asked in a process of its own, since a process has one fork server: another test may have started this one's.
    """
    done = subprocess.run(
        [sys.executable, "-c", ASKED], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
