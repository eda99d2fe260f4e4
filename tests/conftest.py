"""Fixtures of all rooms."""

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from needs import pytest_runtest_setup, pytest_sessionfinish  # noqa: F401  hooks, which pytest finds here
from sampling import draw, pytest_addoption, pytest_report_header  # noqa: F401
from worker_processes import run_workers, start_fork_server

from paceline.comm.network import Link, Network
from paceline.comm.virtual import Cluster
from paceline.strategies.state import from_bytes, to_bytes

# MKL's products of a matrix and one vector depend, on some CPUs, on where in memory the matrix begins; weights that are
# views of one flat tensor then train to other last bits than weights of their own. This makes it one result for all.
os.environ["MKL_CBWR"] = "COMPATIBLE"

settings.register_profile("paceline", deadline=None, database=None)
settings.load_profile("paceline")

NETWORK = Network(between=Link(latency=1e-5, bandwidth=1e9), inside=Link(latency=1e-6, bandwidth=1e10))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their module run in one process of pytest-xdist (--dist loadgroup), in order."""
    for item in items:
        assert isinstance(item, pytest.Function)
        fixtures = [definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values()]
        if any(fixture.scope == "module" for fixture in fixtures):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
    draw(config, items)


@pytest.fixture(scope="session")
def fork_server() -> None:
    """Worker processes start in a fraction of a second, those of engine.run too."""
    start_fork_server()


@pytest.fixture(scope="session")
def workers(fork_server: None) -> Callable[..., list[Any]]:
    """`workers(size, function, *arguments)`: see worker_processes.run_workers."""
    return run_workers


def run_virtual(size: int, function: Callable[..., Any], *arguments: Any, **_: Any) -> list[Any]:
    """`run_workers` on the virtual cluster; each worker gets a copy of the arguments, as a process does."""
    own = [copy.deepcopy(arguments) for _ in range(size)]
    return [
        from_bytes(to_bytes({"result": result}))["result"]
        for result in Cluster(size, NETWORK).run(lambda comm: function(comm, *own[comm.rank]))
    ]


@pytest.fixture
def virtual_workers() -> Callable[..., list[Any]]:
    return run_virtual


@pytest.fixture(params=["process", "virtual"])
def fabric(request: pytest.FixtureRequest, fork_server: None) -> Callable[..., list[Any]]:
    """As `workers`, on real processes and on the virtual cluster: no algorithm knows which it is on."""
    return run_workers if request.param == "process" else run_virtual
