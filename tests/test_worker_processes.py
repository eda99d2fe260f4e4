"""How tests start worker processes."""

import sys
from typing import Any

import pytest
from worker_processes import PRELOADED, run_workers


def imported(comm: Any) -> list[str]:
    return sorted(sys.modules)


@pytest.mark.dist
def test_workers_have_all_imported_before_their_time_runs_whoever_starts_them() -> None:
    """Six that import torch at once, on busy cores, take longer than any of them waits for another."""
    for modules in run_workers(2, imported):
        assert set(PRELOADED) <= set(modules)
