"""The one fork server of Python's multiprocessing in this process: its pid, its socket, and what keeps it alive."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, process
from typing import Any

SAFE_PATH, OURS = "PYTHONSAFEPATH", "paceline"  # set for the server alone, which else imports from its folder


def pid() -> int | None:
    """None where none was started from here."""
    return _server()._forkserver_pid


def wake() -> None:
    """Lets a stopped fork server go on. One that runs takes no notice."""
    if (server := pid()) is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGCONT)


@contextmanager
def kept_awake() -> Iterator[None]:
    """Wakes the fork server every second meanwhile. Python waits without end for a stopped one to start a process."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            wake()

    watcher = threading.Thread(target=watch, name="fork server", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def address() -> str:
    """Returns the address at which the fork server listens."""
    return str(_server()._forkserver_address)


def set_address(path: str) -> None:
    """Sets the address at which the fork server is reached from now on."""
    _server()._forkserver_address = path


def let_go() -> None:
    """Lets the fork server end. It ends once nobody holds a certain pipe, which multiprocessing hands to every child
    too; this process closes it.
    """
    server = _server()
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None


@contextmanager
def sockets_under(directory: str) -> Iterator[None]:
    """Sockets that multiprocessing makes meanwhile are in `directory`."""
    config: dict[str, Any] = process.current_process()._config  # pyright: ignore[reportAttributeAccessIssue]
    before = config.get("tempdir")
    config["tempdir"] = directory
    try:
        yield
    finally:
        config["tempdir"] = before


def _server() -> Any:
    return forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
