"""Fixtures of all rooms."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from worker_processes import run_workers, start_fork_server

settings.register_profile("paceline", deadline=None, database=None)
settings.load_profile("paceline")


@pytest.fixture(scope="session")
def fork_server() -> None:
    """Worker processes start in a fraction of a second, those of engine.run too."""
    start_fork_server()


@pytest.fixture(scope="session")
def workers(fork_server: None) -> Callable[..., list[Any]]:
    """`workers(size, function, *arguments)`: see worker_processes.run_workers."""
    return run_workers
