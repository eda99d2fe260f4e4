"""Memory that processes share: it is reserved before it is used, and nothing of it outlives them."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from file_sizes import files_of

from paceline.comm.errors import FabricError, HostMemoryError, PeerLostError
from paceline.comm.shared_memory import MemoryFile, available, open_shared


def test_more_than_the_host_has_is_refused_with_what_is_needed_and_what_is_free() -> None:
    with pytest.raises(HostMemoryError, match=r"1,048,576\.0 MiB .* this host has [\d,]+\.\d MiB free") as caught:
        MemoryFile(2**40)
    assert caught.value.exit_code == 3


def test_pages_that_cannot_be_had_are_refused_before_anyone_writes_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved: list[int] = []

    def full(descriptor: int, start: int, size: int) -> None:
        reserved.append(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HostMemoryError, match=r"0\.5 MiB .* MiB free"):
        MemoryFile(2**19)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reserved[0])


def test_a_limit_of_file_sizes_is_named_in_place_of_memory() -> None:
    with files_of(2**19), pytest.raises(HostMemoryError, match=r"1\.0 MiB .* files of 0\.5 MiB \(ulimit -f\)\. Raise"):
        MemoryFile(2**20)


def test_all_its_pages_are_there_from_the_start() -> None:
    shared = MemoryFile(2**20)
    process, descriptor, _ = shared.place.split("/")
    assert Path(f"/proc/{process}/fd/{descriptor}").stat().st_blocks * 512 >= 2**20
    shared.close()
    assert available() > 2**20


def test_what_is_opened_is_what_was_made_and_not_another_file_under_its_number() -> None:
    shared = MemoryFile(4)
    shared.memory[:] = b"mine"
    assert open_shared(shared.place)[:] == b"mine"
    process, descriptor, _ = shared.place.split("/")
    with pytest.raises(FabricError, match="another container"):
        open_shared(f"{process}/{descriptor}/paceline-0000000000000000")
    shared.close()
    with pytest.raises(FabricError, match="No such file"):
        open_shared(shared.place)


def die_once_it_is_made(comm):
    """Worker 0 has made it and told nobody."""
    before, word = set(Path("/dev/shm").iterdir()), torch.zeros(1)
    if comm.rank == 0:
        comm.send(word, 1)
        comm._all_say = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        comm.shared(torch.zeros(4))
    comm.recv(word, 0)
    with pytest.raises(PeerLostError):
        comm.recv(word, 0)
    return [str(path) for path in set(Path("/dev/shm").iterdir()) - before if "paceline" in path.name]


@pytest.mark.dist
@pytest.mark.timeout(60)
def test_a_process_that_has_ended_is_a_peer_that_is_lost() -> None:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, MemoryFile(4096).place.encode())
        os.kill(os.getpid(), signal.SIGKILL)
    place = os.read(reads, 100).decode()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and its status is still there
    for _ in range(2):
        with pytest.raises(PeerLostError, match=f"process {child} ended before it shared its memory"):
            open_shared(place)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
    with pytest.raises(FabricError, match=r"Bad file descriptor|No such file"):
        open_shared(f"{os.getpid()}/9999/{place.rpartition('/')[2]}")


def test_a_worker_that_is_killed_while_it_shares_memory_leaves_nothing(workers) -> None:
    assert workers(2, die_once_it_is_made, lost=[0])[1] == []
