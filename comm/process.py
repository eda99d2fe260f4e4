"""The process fabric: one OS process a worker, torch.distributed underneath (gloo on CPUs, nccl on GPUs).

The rendezvous store is bound to loopback by handing it a socket that already listens there; the launcher holds it, so
it outlives any worker. Under torchrun the store is torchrun's.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from . import ledger as wire
from .base import Comm, ReduceOp, Work, nbytes
from .board import StoreBoard
from .errors import HangError, PeerLostError, RendezvousError
from .ledger import Ledger
from .timeline import Timeline

_REDUCE = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
T = TypeVar("T")
_NEVER = float("-inf")  # a receiver's launch: see timeline.last_launches


def serve_store(port: int, timeout: float) -> tuple[dist.TCPStore, int]:
    """Listen on loopback only; `port` 0 takes a free one. Raises `RendezvousError` when the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise RendezvousError(
            f"hardware.port={port}: cannot listen on 127.0.0.1:{port} ({error.strerror}); "
            "hardware.port=0 takes a free port"
        ) from None
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout),
        master_listen_fd=listener.detach(),
    )
    return store, port


def connect(address: str, port: int, rank: int, size: int, timeout: float, device: torch.device) -> "ProcessComm":
    """Join the run as worker `rank` of `size`. Raises `RendezvousError` or `HangError`."""
    if address in ("127.0.0.1", "localhost"):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    return _join(_store(address, port, rank, timeout, hosts_it=False), rank, size, timeout, device)


def connect_env(timeout: float, device: torch.device) -> "ProcessComm":
    """Join the run that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe (env://, torchrun).

    On several hosts, GLOO_SOCKET_IFNAME says which network to use.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agent_hosts_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = _store(address, port, rank, timeout, hosts_it=rank == 0 and not agent_hosts_it)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return _join(dist.PrefixStore(f"restart-{restart}", store), rank, size, timeout, device)


def _store(address: str, port: int, rank: int, timeout: float, hosts_it: bool) -> dist.TCPStore:
    patience = timedelta(seconds=timeout)
    try:
        return dist.TCPStore(address, port, is_master=hosts_it, wait_for_workers=False, timeout=patience)
    except dist.DistError as error:
        raise RendezvousError(f"worker {rank} cannot reach the rendezvous at {address}:{port}: {error}") from None


def _join(store: dist.Store, rank: int, size: int, timeout: float, device: torch.device) -> "ProcessComm":
    board = StoreBoard(dist.PrefixStore("paceline", store), rank, size, timeout)
    everyone = list(range(size))
    hosts = board.set_and_wait("hosts", everyone, _boot_id(), "all workers to start")
    groups = _Groups(dist.PrefixStore("groups", store), timeout, device)
    world = groups.make("world", rank, size) if size > 1 else None
    board.set_and_wait("clock", everyone, "", "all workers to connect")
    # On one host the monotonic clock is everyone's; across hosts, clocks start together at this barrier.
    origin = 0.0 if len(set(hosts)) == 1 else time.perf_counter()
    return ProcessComm(everyone, board, Ledger(), Timeline(), "world", world, groups, origin)


@dataclass(frozen=True)
class _Groups:
    """Makes torch's process groups, without torch's global registry: any members may, at any time."""

    store: dist.Store
    timeout: float
    device: torch.device

    def make(self, name: str, rank: int, size: int) -> dist.ProcessGroup:
        store, patience = dist.PrefixStore(name, self.store), timedelta(seconds=self.timeout)
        group = dist.ProcessGroup(store, rank, size)
        kinds = dist.ProcessGroup.BackendType
        try:
            gloo = dist.ProcessGroupGloo(dist.PrefixStore("cpu", store), rank, size, patience)
            group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
            group._set_default_backend(kinds.GLOO)
            if self.device.type == "cuda":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = patience
                nccl = dist.ProcessGroupNCCL(dist.PrefixStore("cuda", store), rank, size, options)
                group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
        except RuntimeError as error:
            raise PeerLostError(f"{name}: could not connect to the other workers: {error}") from error
        group._set_group_name(cast(Any, name))  # torch's DDP logs it
        return group


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _check_dense(tensor: Tensor) -> None:
    # gloo takes numel() entries from data_ptr() on, whatever the strides: holes between them would be overwritten
    assert tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor), "a tensor with holes"


def _check_contiguous(tensor: Tensor) -> None:
    assert tensor.is_contiguous(), "a message is a contiguous tensor"


def _reduce_options(op: ReduceOp) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = cast(Any, _REDUCE[op])
    return options


def _broadcast_options(src: int) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = src, 0
    return options


class _Pending(Work):
    def __init__(self, comm: "ProcessComm", work: dist.Work | None, what: str, channel: str, launch: float) -> None:
        self._comm, self._work, self._what, self._channel = comm, work, what, channel
        self._number = comm.timeline.number(channel)
        self._launch = launch

    def wait(self) -> None:
        if self._work is None:
            return
        comm, work = self._comm, self._work
        self._work = None
        start = comm.now()
        comm.blocked(self._what, lambda: work.wait())
        comm.timeline.add(self._channel, self._number, self._launch, start, comm.now())


class _Done(Work):
    def wait(self) -> None: ...


class ProcessComm(Comm):
    """A worker process's end of a group. `ranks` are the group's members, numbered in the whole run."""

    def __init__(
        self,
        ranks: list[int],
        board: StoreBoard,
        ledger: Ledger,
        timeline: Timeline,
        name: str,
        group: dist.ProcessGroup | None,
        groups: _Groups,
        origin: float,
    ) -> None:
        self.ranks, self.ledger, self.timeline = ranks, ledger, timeline
        self.board = self._board = board
        self.rank, self.size, self.name = ranks.index(board.rank), len(ranks), name
        self.group = group  # torch's own group: what torch's reference implementations take
        self._groups, self._origin = groups, origin
        self._splits = self._barriers = self._shares = 0
        self.future_failed = False  # one of all_reduce_future: torch's error says nothing of peers

    # -- collectives

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Work:
        _check_dense(tensor)
        self.ledger.count("all_reduce", wire.all_reduce_bytes(nbytes(tensor), self.size))
        return self._collective("all_reduce", lambda group: group.allreduce([tensor], _reduce_options(op)))

    def broadcast(self, tensor: Tensor, src: int) -> Work:
        _check_dense(tensor)
        distance = (self.rank - src) % self.size
        self.ledger.count("broadcast", wire.broadcast_bytes(nbytes(tensor), self.size, distance))
        return self._collective("broadcast", lambda group: group.broadcast([tensor], _broadcast_options(src)))

    def all_gather(self, tensor: Tensor) -> Tensor:
        self.ledger.count("all_gather", wire.all_gather_bytes(nbytes(tensor), self.size))
        gathered = tensor.new_empty(self.size, *tensor.shape)
        if self.size == 1:
            return gathered.copy_(tensor)
        flat = gathered.view(-1)
        self._collective("all_gather", lambda group: group._allgather_base(flat, tensor.contiguous().view(-1))).wait()
        return gathered

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        self.ledger.count("reduce_scatter", wire.reduce_scatter_bytes(nbytes(tensor), self.size))
        if self.size == 1:
            return tensor.clone()
        # gloo's own reduce_scatter is an all-reduce inside, at twice the bytes (seen in /proc/self/io)
        received = self._exchange("reduce_scatter", tensor)
        return received.view(self.size, -1, *tensor.shape[1:]).sum(0)

    def all_to_all(self, tensor: Tensor) -> Tensor:
        self.ledger.count("all_to_all", wire.all_to_all_bytes(nbytes(tensor), self.size))
        if self.size == 1:
            return tensor.clone()
        return self._exchange("all_to_all", tensor)

    def _exchange(self, primitive: str, tensor: Tensor) -> Tensor:
        received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        self._collective(primitive, lambda group: group.alltoall_base(received, tensor.contiguous(), [], [])).wait()
        return received

    def barrier(self) -> None:
        self._barriers += 1
        start, number = self.now(), self.timeline.number(f"{self.name}#barrier")
        prefix = f"barrier/{self.name}/{self._barriers}"
        self.board.doing(f"in barrier of {self.name}")
        self._board.set_and_wait(prefix, self.ranks, "", f"the barrier of {self.name}")
        self.timeline.add(f"{self.name}#barrier", number, start, start, self.now())

    def _collective(self, primitive: str, launch: Callable[[dist.ProcessGroup], dist.Work]) -> Work:
        if self.group is None:
            return _Done()
        group = self.group
        what = f"in {primitive} of {self.name}"
        at = self.now()
        work = self.blocked(what, lambda: launch(group))
        return _Pending(self, work, what, f"{self.name}#", at)

    def all_reduce_future(self, tensor: Tensor, blocks: bool) -> "torch.futures.Future[list[Tensor]]":
        """All-reduce for torch's own implementations, which wait by themselves and out of our sight.

        `blocks`: from here on the caller has nothing left but to wait, so that the time until it is done is noted.
        """
        self.ledger.count("all_reduce", wire.all_reduce_bytes(nbytes(tensor), self.size))
        assert self.group is not None
        at, channel = self.now(), f"{self.name}#"
        number = self.timeline.number(channel)
        future = self.group.allreduce([tensor], _reduce_options("sum")).get_future()

        def done(finished: "torch.futures.Future[list[Tensor]]") -> list[Tensor]:
            self.timeline.add(channel, number, at, at, self.now() if blocks else at)
            try:
                return finished.value()
            except RuntimeError:
                self.future_failed = True
                raise

        return future.then(done)

    # -- point to point

    def send(self, tensor: Tensor, dst: int) -> None:
        self.isend(tensor, dst).wait()

    def recv(self, tensor: Tensor, src: int) -> None:
        self.irecv(tensor, src).wait()

    def isend(self, tensor: Tensor, dst: int) -> Work:
        _check_contiguous(tensor)
        self.ledger.count("send", nbytes(tensor))
        group = self._peers()
        at, what = self.now(), f"in send to worker {self.ranks[dst]}"
        work = self.blocked(what, lambda: group.send([tensor], dst, 0))
        return _Pending(self, work, what, self._channel(self.rank, dst), at)

    def irecv(self, tensor: Tensor, src: int) -> Work:
        _check_contiguous(tensor)
        group = self._peers()
        what = f"in recv from worker {self.ranks[src]}"
        work = self.blocked(what, lambda: group.recv([tensor], src, 0))
        return _Pending(self, work, what, self._channel(src, self.rank), _NEVER)

    def recv_any(self, tensor: Tensor) -> int:
        _check_contiguous(tensor)
        group, start = self._peers(), self.now()

        def receive() -> int:
            work = group.recv_anysource([tensor], 0)
            work.wait()
            return work._source_rank()

        src = self.blocked("in recv_any", receive)
        channel = self._channel(src, self.rank)
        self.timeline.add(channel, self.timeline.number(channel), _NEVER, start, self.now())
        return src

    def _peers(self) -> dist.ProcessGroup:
        assert self.group is not None, f"{self.name} has one worker: nobody to talk to"
        return self.group

    def _channel(self, src: int, dst: int) -> str:
        return f"{self.name}:{src}>{dst}"

    # -- the rest

    def shared(self, tensor: Tensor) -> Tensor:
        self._shares += 1
        prefix = f"shared/{self.name}/{self._shares}"
        mine = Path("/dev/shm") / f"paceline-{secrets.token_hex(16)}"
        if self.rank == 0:
            self._map(mine, tensor).copy_(tensor)
        path = Path(self._board.set_and_wait(prefix, self.ranks, str(mine), "shared memory")[0])
        mapped = self._map(path, tensor)
        self._board.set_and_wait(f"{prefix}/mapped", self.ranks, "", "shared memory")
        if self.rank == 0:
            path.unlink()  # the memory lives on as long as somebody maps it
        return mapped

    @staticmethod
    def _map(path: Path, like: Tensor) -> Tensor:
        return torch.from_file(str(path), shared=True, size=like.numel(), dtype=like.dtype).view(like.shape)

    def split(self, color: int | None) -> "ProcessComm | None":
        self._splits += 1
        prefix = f"split/{self.name}/{self._splits}"
        said = self._board.set_and_wait(prefix, self.ranks, str(color), f"the split of {self.name}")
        if color is None:
            return None
        ranks = [rank for rank, its in zip(self.ranks, said, strict=True) if its == str(color)]
        name = f"{self.name}/{self._splits}.{color}"
        group = self._groups.make(name, ranks.index(self._board.rank), len(ranks)) if len(ranks) > 1 else None
        return ProcessComm(ranks, self._board, self.ledger, self.timeline, name, group, self._groups, self._origin)

    def now(self) -> float:
        return time.perf_counter() - self._origin

    def elapse(self, seconds: float) -> None:
        time.sleep(seconds)

    def blocked(self, what: str, call: Callable[[], T]) -> T:
        """Make a call that may block; turn torch's errors into ours, naming who is missing."""
        self.board.doing(what)
        try:
            return call()
        except RuntimeError as error:
            raise self.explained(error, what) from error
        finally:
            self.board.doing("computing")

    def explained(self, error: RuntimeError, what: str) -> HangError | PeerLostError:
        """torch's error as ours."""
        text = str(error).lower()
        if "timed out" in text or "timeout" in text:
            who = self._board.explain_timeout(self.ranks, what)
            return HangError(f"worker {self.board.rank} waited {self._groups.timeout:g} s {what}: {who}")
        return PeerLostError(f"worker {self.board.rank} lost a peer {what}: {error}")

    def close(self) -> None:
        self._board.close()
