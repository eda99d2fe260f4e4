"""Another user of this host attacks all that a run listens on, and reads all that it can: the run is as without it."""

import multiprocessing
import os
import signal
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from faults import strangers
from faults.strangers import ATTACKS, NOBODY, be_stranger
from process_table import until, workers_of
from short_runs import START, Start, Train, weights

from paceline.comm.handshake import Endpoint
from paceline.comm.rendezvous import serve_store
from paceline.comm.store import StoreServer
from paceline.engine.base.errors import WorkerFailedError
from paceline.engine.launch import local

pytestmark = [pytest.mark.dist, pytest.mark.fault, pytest.mark.timeout(240)]
PAUSED = ("strategy=sabotage", "strategy.pause=0.05", "steps=400")
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


def in_processes(function: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """`function` with each of these arguments, all at once."""
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=function, args=arguments) for arguments in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        process.kill()
        process.join()


def test_a_run_that_strangers_attack_in_every_way_at_once_ends_with_the_same_weights(
    train: Train, start: Start
) -> None:
    """As another user where root allows."""
    launcher = start(*PAUSED)
    launcher.until(lambda: launcher.steps() >= 5, "five steps")
    ports = strangers.listening(launcher)  # pyright: ignore[reportArgumentType] it asks for `alive` alone
    assert len(ports) >= 5, "the store's, and of each worker its own and gloo's"
    in_processes(be_stranger, *((attack, ports, 1) for attack in ATTACKS))
    assert launcher.process.poll() is None, f"it should have gone on meanwhile: {launcher.said()}"
    assert launcher.wait() == 0, launcher.said()
    assert weights(launcher.run.path) == weights(train(*PAUSED).path)


def look_for(words: list[bytes], pids: list[int], folder: str, found: Connection) -> None:
    """As another user: whatever can be read of these processes and below this folder."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    files = [Path(f"/proc/{pid}", name) for pid in pids for name in ("cmdline", "environ", "maps", "status", "auxv")]
    files += [path for pid in pids for path in _listed(Path(f"/proc/{pid}/fd"))]
    files += [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    leaks, read = [], 0
    for file in files:
        with suppress(OSError):
            content = os.read(os.open(file, os.O_RDONLY | os.O_NONBLOCK), 1 << 24)
            read += 1
            leaks += [str(file) for word in words if word in content]
    with suppress(OSError):
        os.open(f"/proc/{pids[-1]}/mem", os.O_RDONLY)
        leaks.append("memory")
    found.send([leaks, read])


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


@as_root
def test_no_other_user_can_read_the_key_of_a_run(
    train: Train, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[Endpoint] = []

    def serve(port: int) -> StoreServer:
        server = serve_store(port)
        keys.append(server.endpoint)
        return server

    monkeypatch.setattr(local, "serve_store", serve)
    for folder in (tmp_path, *tmp_path.parents):  # others shall be kept out by what we make alone
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)

    def run() -> None:
        with suppress(WorkerFailedError):  # we end it when we have looked
            train(*PAUSED, name="mine")

    running = threading.Thread(target=run)
    running.start()
    until(lambda: len(workers_of(root / "mine")) == 2, START, "two workers")
    key = keys[0].key
    ours, theirs = multiprocessing.get_context("forkserver").Pipe(duplex=False)
    pids = [os.getpid(), forkserver._forkserver._forkserver_pid, *workers_of(root / "mine").values()]  # pyright: ignore
    in_processes(look_for, ([key, key.hex().encode()], pids, str(root), theirs))
    assert ours.poll(0), "it ended without a word"
    leaks, read = ours.recv()
    for pid in workers_of(root / "mine").values():
        os.kill(pid, signal.SIGKILL)
    running.join()
    assert leaks == [] and read >= 2 * len(pids), "cmdline and status of each can be read"


def test_the_fork_server_hears_nobody_else(fork_server: None) -> None:
    """It runs what it is sent. Python 3.11.0 would take it from anyone."""
    address = forkserver._forkserver._forkserver_address  # pyright: ignore[reportAttributeAccessIssue]
    assert not address.startswith("\0"), "an abstract socket has no mode"
    assert stat.S_IMODE(Path(address).stat().st_mode) & 0o077 == 0
