"""Joins a worker process to a run: it meets the others in the run's store, and connects to each."""

import ipaddress
import json
import os
import socket
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .errors import RendezvousError, SharedDeviceError
from .gloo import Gloo
from .groups import Groups
from .handshake import Endpoint
from .key_values import StoreKeyValues
from .ledger import Ledger
from .marks import events_of
from .process import ProcessComm
from .process_worker import ProcessWorker
from .rendezvous import Environment, meet
from .sockets import Address, Sockets
from .store import StoreClient, StoreServer
from .timeline import Timeline


def connect(store: Endpoint, rank: int, size: int, timeout: float, device: torch.device) -> ProcessComm:
    """Join the run on this host whose launcher serves `store`, as worker `rank` of `size`.

    Raises `RendezvousError` or `HangError`.
    """
    _use_loopback()
    return _join(StoreClient(store, rank, timeout), None, rank, size, timeout, device)


def connect_env(timeout: float, device: torch.device) -> ProcessComm:
    """Join the run that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe (env://, torchrun).

    On several hosts, GLOO_SOCKET_IFNAME says which network to use for collectives; messages between two workers take
    the network on which a worker reaches MASTER_ADDR. Worker 0 may come last. Raises `TokenError` beside what `connect`
    raises.
    """
    told = Environment.read()
    if told.on_loopback:
        _use_loopback()
    server, store = meet(told, timeout)
    client = StoreClient(store, told.rank, timeout, served_by=0)
    try:
        check_place(client, told.rank, told.size)
    except RendezvousError:
        client.close()
        raise
    return _join(client, server, told.rank, told.size, timeout, device)


def check_place(store: StoreClient, rank: int, size: int) -> None:
    """Refuses a second process of one rank, and another WORLD_SIZE than worker 0's. Raises `RendezvousError`."""
    if store.add(f"joined/{rank}", 1) > 1:
        raise RendezvousError(
            f"RANK={rank}: another process is worker {rank} of this run already. Give each process a rank of its own"
        )
    if rank == 0:
        store.set("size", str(size))
    try:
        first = int(store.get("size"))
    except dist.DistStoreError:
        raise RendezvousError(f"worker {rank} reached the rendezvous, and worker 0 has not joined it") from None
    if first != size:
        raise RendezvousError(
            f"WORLD_SIZE={size}: worker {rank} was started with this number, and worker 0 with {first}. Start all "
            "processes with the same number"
        )


def _use_loopback() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def _join(
    store: StoreClient, server: StoreServer | None, rank: int, size: int, timeout: float, device: torch.device
) -> ProcessComm:
    """`server`: the store's, where this worker serves it."""
    key_values = StoreKeyValues(store, rank, size, timeout)
    try:
        everyone = list(range(size))
        here = {"host": _host(), "address": _own_address(store.endpoint.host), "process": os.getpid()}
        own = json.dumps(here | {"device": device.type, "card": _card(device), **_software()})
        said = [json.loads(word) for word in key_values.set_and_wait("hosts", everyone, own, "all workers to start")]
        hosts = [word["host"] for word in said]
        address = _address_for_all([word["address"] for word in said], rank)
        gloo = Gloo(address if len(set(hosts)) > 1 else None)
        groups = Groups(dist.PrefixStore("groups", store), timeout, device, gloo)
        devices = [word["device"] for word in said]
        check_software(said)
        _check_cards(said)
        world = groups.make("world", rank, size, set(devices) == {"cuda"}) if size > 1 else None
        sockets = Sockets(address, store.endpoint.key, key_values, timeout)
        own = json.dumps(asdict(sockets.address))
        sockets.meet(
            [
                Address(**json.loads(word))
                for word in key_values.set_and_wait("clock", everyone, own, "all workers to connect")
            ]
        )
        key_values.look = sockets.look
        key_values.visit = sockets.visit
        # On one host the monotonic clock is everyone's; across hosts, clocks start together at this barrier.
        origin = 0.0 if len(set(hosts)) == 1 else time.perf_counter()
        event = events_of(device)
        worker = ProcessWorker(key_values, Ledger(), Timeline(), sockets, groups, hosts, devices, origin, server, event)
        for other, word in enumerate(said):
            if word["host"] == hosts[rank] and other != rank:
                worker.watch(other, word["process"])
        return ProcessComm(worker, everyone, "world", world, worker.ledger)
    except BaseException:
        key_values.close()  # its thread would end this process when the store is gone
        raise


def _own_address(other: str) -> str:
    """Returns this host's address on the network on which it reaches `other`."""
    family, kind, _, _, target = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # sends nothing
        return probe.getsockname()[0]


def _address_for_all(addresses: list[str], rank: int) -> str:
    """Returns an address at which all reach worker `rank`, given every worker's address towards the store.

    The host that has the store may know its own name as a loopback address, which others cannot use. Where hosts look
    up its name as IPv4 and as IPv6, all take the kind of the first. Raises `RendezvousError`.
    """
    told = [ipaddress.ip_address(address) for address in addresses]
    first = next((address for address in told if not address.is_loopback), None)
    own = told[rank]
    if first is None or (not own.is_loopback and own.version == first.version):
        return addresses[rank]
    try:
        return _own_address(str(first))
    except OSError as error:
        raise RendezvousError(
            f"worker {rank} at {own} reaches nobody at {first} ({error.strerror}). Give MASTER_ADDR as an address of a "
            "network that all hosts have"
        ) from None


def _host(proc: Path = Path("/proc")) -> str:
    """Identifies what shares memory, process ids and the monotonic clock: a machine, or a container on it."""
    own = [proc / "self" / "ns" / kind for kind in ("pid", "mnt", "user", "time")]
    spaces = [str(space.readlink()) for space in own if space.is_symlink()]  # old kernels have no time namespaces
    return "\n".join([(proc / "sys/kernel/random/boot_id").read_text(), *spaces])


def _card(device: torch.device) -> str:
    """Identifies this process's GPU, whatever CUDA_VISIBLE_DEVICES calls it; "" without one."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def _software() -> dict[str, Any]:
    versions = {"paceline": version("paceline"), "torch": torch.__version__.partition("+")[0]}
    return {"node": socket.gethostname(), "versions": versions | {"Python": ".".join(map(str, sys.version_info[:2]))}}


def check_software(said: list[dict[str, Any]]) -> None:
    """Refuses workers with unlike versions, which may not understand each other. `said`: by each worker.

    Raises `RendezvousError`.
    """
    first = said[0]
    for rank, word in enumerate(said):
        for name, found in word["versions"].items():
            if found != first["versions"][name]:
                raise RendezvousError(
                    f"worker {rank} on {word['node']} has {name} {found}, and worker 0 on {first['node']} has "
                    f"{first['versions'][name]}. Install the same version on all nodes."
                )


def _check_cards(said: list[dict[str, Any]]) -> None:
    """Refuses two workers on one GPU, which nccl cannot connect. `said`: by each worker."""
    owner: dict[str, int] = {}
    for rank, word in enumerate(said):
        if word["card"] and (first := owner.setdefault(word["card"], rank)) != rank:
            raise SharedDeviceError(
                f"hardware.device=cuda: workers {first} and {rank} have the same GPU. Give each process a GPU of its "
                "own, or choose hardware.device=cpu."
            )
