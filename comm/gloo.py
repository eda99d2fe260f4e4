"""gloo's connections, which prove nothing by themselves: whoever connects first is taken for the peer.

So workers compare, over the run's store, which connections they have when a group has been made: each must end at
another worker. A group that somebody else has got into is thrown away and made again, on another port. Before and
after, a filter of the kernel drops all that comes to the port on which gloo listens: gloo keeps whatever connects, and
ends the process when it has no descriptors left.
"""

import ctypes
import ipaddress
import json
import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..compat import process_groups
from .errors import RendezvousError
from .handshake import LISTENING

ATTEMPTS = 5  # to make a group that nobody else gets into
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # of SOL_SOCKET
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # one instruction of BPF: return 0 bytes of the packet
Link = tuple[tuple[str, int], tuple[str, int]]  # a connection's own address and the other end's


class GlooDevice:
    """The device through which groups connect. Its thread looks for work 100 times a second: one device is made for
    all.
    """

    def __init__(self, address: str | None = None) -> None:
        """`address`: at which other hosts reach this one, whose own name may have a loopback address alone."""
        self._listen(dist.ProcessGroupGloo.create_default_device)
        is_chosen = "GLOO_SOCKET_IFNAME" in os.environ
        if address is not None and not is_chosen and ipaddress.ip_address(self.address[0]).is_loopback:
            self._listen(lambda: dist.ProcessGroupGloo.create_device(hostname=address))
        self.shut()

    def _listen(self, make: Callable[[], Any]) -> None:
        with LISTENING:
            before = {inode for inode, _ in _sockets()}
            self.device = make()
            new = [fd for inode, fd in _sockets() if inode not in before and _listens(fd)]
        assert len(new) == 1, f"gloo listens on {len(new)} ports"
        self._descriptor = new[0]
        with _handle(self._descriptor) as sock:
            self.address: tuple[str, int] = sock.getsockname()[:2]

    def open(self) -> None:
        with _handle(self._descriptor) as sock, suppress(OSError):  # there is none
            sock.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)

    def shut(self) -> None:
        """Nobody can connect from now on; who has connected stays."""
        program = ctypes.create_string_buffer(_DROP_ALL)
        try:
            with _handle(self._descriptor) as sock:
                sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))
        except OSError as error:
            print(f"gloo's port stays open to everyone: {error.strerror}", file=sys.stderr, flush=True)


class Gloo:
    """Makes gloo's groups. `address`: at which other hosts reach this one; None: there are no others."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._device: GlooDevice | None = None

    def make(self, store: dist.Store, rank: int, size: int, timeout: float) -> dist.ProcessGroupGloo:
        """Raises `RendezvousError` when somebody else always gets in, and what gloo raises."""
        for attempt in range(ATTEMPTS):
            if self._device is None:
                self._device = GlooDevice(self._address)
            own = dist.PrefixStore(f"gloo-{attempt}", store)
            group, links = _connect(own, rank, size, timeout, self._device)
            strangers = foreign(_told_by_all(own, rank, size, timeout, self._device.address, links))
            self._device.shut()
            if not strangers:
                return group
            self._device = None
            print(f"worker {rank}: a stranger got into gloo's connections: {strangers}", file=sys.stderr, flush=True)
        raise RendezvousError(
            f"worker {rank} could not connect to the others: in {ATTEMPTS} attempts somebody else got into gloo's "
            "connections; who is on this host, or on this network?"
        )


def _connect(
    store: dist.Store, rank: int, size: int, timeout: float, device: GlooDevice
) -> tuple[dist.ProcessGroupGloo, list[Link]]:
    """The group, and the connections that were made meanwhile."""
    before = {inode for inode, _ in _sockets()}
    device.open()
    group = process_groups.gloo(dist.PrefixStore("cpu", store), rank, size, timedelta(seconds=timeout), device.device)
    return group, [link for inode, fd in _sockets() if inode not in before and (link := _link(fd))]


Told = tuple[tuple[str, int], list[Link]]  # where a worker's gloo listens, and its connections


def _told_by_all(
    store: dist.Store, rank: int, size: int, timeout: float, address: tuple[str, int], links: list[Link]
) -> list[Told]:
    store.set(f"links/{rank}", json.dumps([address, links]))
    keys = [f"links/{other}" for other in range(size)]
    store.wait(keys, timedelta(seconds=timeout))
    told = [json.loads(word) for word in store.multi_get(keys)]
    return [
        (tuple(listens), [(tuple(here), tuple(there)) for here, there in connections]) for listens, connections in told
    ]


def foreign(told: list[Told]) -> list[Link]:
    """The connections of workers to or from a port of gloo's that no worker has the other end of."""
    ports = {address for address, _ in told}
    links = {link for _, connections in told for link in connections if not ports.isdisjoint(link)}
    return sorted((here, there) for here, there in links if (there, here) not in links)


# -- this process's sockets


def _sockets() -> list[tuple[str, int]]:
    """Inode and descriptor of each."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # another thread has closed it
            if (target := str(path.readlink())).startswith("socket:"):
                found.append((target, int(path.name)))
    return found


def _handle(descriptor: int) -> socket.socket:
    return socket.socket(fileno=os.dup(descriptor))


def _listens(descriptor: int) -> bool:
    try:
        with _handle(descriptor) as sock:
            return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    except OSError:
        return False


def _link(descriptor: int) -> Link | None:
    """None: it is no connection over the network."""
    try:
        with _handle(descriptor) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                return sock.getsockname()[:2], sock.getpeername()[:2]
    except OSError:
        pass
    return None
