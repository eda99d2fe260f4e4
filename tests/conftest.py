"""Fixtures of all rooms."""

import gc
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import ctrl_c
import pytest
import torch
from budget import move_to_slow, pytest_runtest_protocol  # noqa: F401  hooks, which pytest finds here
from hypothesis import settings
from needs import pytest_runtest_setup, pytest_sessionfinish  # noqa: F401
from sampling import draw, pytest_addoption, pytest_report_header  # noqa: F401
from worker_processes import preload_in_every_fork_server

from paceline.testing.fabrics import FABRICS, run_virtual
from paceline.testing.processes import run_workers, start_fork_server

# MKL's products of a matrix and one vector depend, on some CPUs, on where in memory the matrix begins; weights that are
# views of one flat tensor then train to other last bits than weights of their own. This makes it one result for all.
os.environ["MKL_CBWR"] = "COMPATIBLE"
# Threads that wait for one another spin: on cores that several tests share, four times the CPU time for the same tests.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; a table that is piped is whole without it

ctrl_c.can_come()
preload_in_every_fork_server()

settings.register_profile("paceline", deadline=None, database=None)
settings.load_profile("paceline")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: set[str] = set()
    for item in items:
        assert isinstance(item, pytest.Function)
        module = item.module.__name__
        fixtures = [definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values()]
        if any(fixture.scope == "module" for fixture in fixtures):  # in one process of pytest-xdist, in order
            item.add_marker(pytest.mark.xdist_group(module))
        if item.path.parent.name == "strategies" and item_fabric(item) == "process":
            if module in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(module)
    if config.getoption("--costs") is None and not config.getoption("--all-cases"):
        move_to_slow(items)
    draw(config, items)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shortens the name of a case with a long text: pytest-xdist sends each name several times."""
    if isinstance(val, str | bytes) and len(val) > 100:
        return val[:60] if isinstance(val, str) else val[:60].decode("latin-1")
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keeps the garbage collector away from what collection makes, which stays to the end, and has it come less often
    afterwards: it takes a tenth of the time of the tests.
    """
    gc.disable()
    try:
        import_in_turn(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def import_in_turn(config: pytest.Config) -> None:
    """Imports the modules of tests, in each process of pytest-xdist from another one on: what one process has rewritten
    for pytest's asserts, the others read. In a new checkout all of them would rewrite all, as they start at one time.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    files = sorted(file for folder in config.args for file in Path(folder).rglob("test_*.py"))
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[first:] + files[:first]:
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))  # as pytest does it
        with suppress(Exception, pytest.skip.Exception):  # which collection shows
            import_module(file.stem)


def item_fabric(item: pytest.Function) -> object:
    return item.callspec.params.get("fabric") if hasattr(item, "callspec") else None


@pytest.fixture(autouse=True)
def no_heartbeat_is_left() -> Iterator[None]:
    """One that is would end this process, without a word, once its store goes."""
    yield
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture(scope="session")
def fork_server() -> None:
    """Worker processes start in a fraction of a second, those of engine.run too."""
    start_fork_server()


@pytest.fixture(scope="session")
def workers(fork_server: None) -> Callable[..., list[Any]]:
    """`workers(size, function, *arguments)`: see worker_processes.run_workers."""
    return run_workers


@pytest.fixture
def virtual_workers() -> Callable[..., list[Any]]:
    return run_virtual


@pytest.fixture(params=FABRICS)
def fabric(request: pytest.FixtureRequest, fork_server: None) -> Callable[..., list[Any]]:
    """As `workers`, on real processes and on the virtual cluster: no algorithm knows which it is on.

    In tests/strategies/ the first case of a module that is on processes is fast and all others are slow: what processes
    do to messages is what tests/comm/ is about.
    """
    return FABRICS[request.param]
