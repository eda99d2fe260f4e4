"""gloo takes whoever connects first for the peer: workers compare their connections, and nobody else's remains."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm import RendezvousError, gloo
from paceline.comm.gloo import GlooDevice, Link, Told, foreign

pytestmark = [pytest.mark.dist, pytest.mark.timeout(60)]


def mesh(size: int) -> list[Told]:
    """What workers tell that are connected to each other and nobody else; the later connects to the earlier."""
    listening = [(f"10.0.0.{rank}", 1000 + rank) for rank in range(size)]
    told: list[Told] = [(address, []) for address in listening]
    for late in range(size):
        for early in range(late):
            caller = (f"10.0.0.{late}", 5000 + early)
            told[late][1].append((caller, listening[early]))
            told[early][1].append((listening[early], caller))
    return told


def test_connections_between_workers_are_nobody_elses() -> None:
    assert foreign(mesh(4)) == []
    assert foreign(mesh(1)) == []


@given(st.integers(2, 5), st.data())
def test_a_connection_with_one_end_is_foreign_whoever_has_it(size: int, data: st.DataObject) -> None:
    told = mesh(size)
    rank = data.draw(st.integers(0, size - 1))
    link: Link = (told[rank][0], ("10.0.0.9", 7))
    told[rank][1].append(link)
    told[rank][1].append((("10.0.0.1", 9), ("10.0.0.8", 80)))  # of another library: none of gloo's ports
    assert foreign(told) == [link]


def test_a_connection_that_the_other_end_does_not_have_is_foreign() -> None:
    """Somebody listens where gloo did, or stands between two workers."""
    told = mesh(2)
    [there] = told[0][1]
    told[0][1].clear()
    assert foreign(told) == [there[::-1]]


STRANGER = """
import socket, struct, sys
kept = []
for place in range(3):
    kept.append(socket.create_connection((sys.argv[1], int(sys.argv[2])), 5))
    kept[-1].sendall(struct.pack("=q", place))
print("in", flush=True)
sys.stdin.read()
"""


def intrude(address: tuple[str, int]) -> "subprocess.Popen[bytes]":
    """Be the first to connect, from another process, and say what a peer says: the number of its place."""
    command = [sys.executable, "-I", "-S", "-c", STRANGER, address[0], str(address[1])]
    stranger = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert stranger.stdout is not None
    assert stranger.stdout.readline() == b"in\n"
    time.sleep(0.05)  # until gloo has taken them
    return stranger


def meet_with_stranger(comm, times):
    """A group of gloo's, into which a stranger gets at worker 0, so many times."""
    opened: list[GlooDevice] = []
    kept = []
    original: Callable[[GlooDevice], None] = GlooDevice.open

    def open_to_stranger(device: GlooDevice) -> None:
        original(device)
        opened.append(device)
        if comm.rank == 0 and len(opened) <= times:
            kept.append(intrude(device.address))

    cast(Any, gloo.GlooDevice).open = open_to_stranger
    try:
        group = gloo.Gloo().make(dist.PrefixStore("again", comm.store), comm.rank, comm.size, 10.0)
    except RendezvousError as error:
        return {"said": str(error), "attempts": len(opened)}
    finally:
        gloo.GlooDevice.open = original
        for stranger in kept:
            stranger.kill()
    tensor = torch.tensor([1.0 + comm.rank])
    cast(Any, group).allreduce([tensor]).wait()
    return {"sum": tensor.item(), "attempts": len(opened)}


def test_a_group_that_a_stranger_got_into_is_made_again_without_it(workers) -> None:
    assert workers(2, meet_with_stranger, 2) == 2 * [{"sum": 3.0, "attempts": 3}]


def test_workers_that_a_stranger_never_leaves_alone_say_so(workers) -> None:
    for told in workers(2, meet_with_stranger, gloo.ATTEMPTS):
        assert told["attempts"] == gloo.ATTEMPTS
        assert "in 5 attempts somebody else got into gloo's connections" in told["said"]


def knock_at_gloo(comm):
    comm.all_reduce(torch.ones(1)).wait()
    address = comm._worker.groups.gloo._device.address
    comm.barrier()
    with socket.socket() as stranger:
        stranger.settimeout(0.3)
        try:
            stranger.connect(address)
        except TimeoutError:
            heard = "nothing"
        else:
            heard = "a connection"
    pair = comm.split(0)
    tensor = torch.ones(1)
    pair.all_reduce(tensor).wait()
    return [heard, tensor.item()]


def test_once_workers_have_met_gloo_hears_no_stranger_and_later_groups_can_be_made(workers) -> None:
    assert workers(2, knock_at_gloo) == 2 * [["nothing", 2.0]]


@pytest.mark.parametrize(("chosen", "heard"), [(None, "127.0.0.2"), ("lo", "127.0.0.1")])
def test_a_host_whose_name_is_a_loopback_address_listens_where_others_reach_it(
    chosen: str | None, heard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's /etc/hosts names the host so. Who chooses an interface gets it."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if chosen is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)
    kind = dist.ProcessGroupGloo
    monkeypatch.setattr(kind, "create_default_device", lambda: kind.create_device(hostname="127.0.0.1"))
    assert GlooDevice().address[0] == "127.0.0.1", "there are no others"
    assert GlooDevice("127.0.0.2").address[0] == heard
