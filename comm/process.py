"""The process fabric: one OS process a worker. Collectives are torch.distributed's (gloo on CPUs, nccl on GPUs), but
for sums of workers of one host, which go through memory that they share (shared_sum.py).

Messages between two workers, and all-gathers of CPU tensors, go over our own sockets, which survive the death of a
peer. A CUDA tensor goes there by way of the host: two messages of nccl that cross wait for each other.

The workers meet in a store of our own (connecting.py). The launcher serves it on loopback, so that it outlives
any worker; under torchrun worker 0 does (rendezvous.py).
"""

import mmap
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor

from ..compat.process_groups import all_gather_into
from ..compat.saved_hooks import without_saved_hooks
from . import ledger as wire
from .base import Comm, ReduceOp, Work, check_contiguous, check_dense, nbytes, numbered
from .calls import Call, Calls
from .errors import FabricError, MessageError, PeerLostError
from .ledger import Ledger
from .marks import Mark
from .mutex import ROOM, SharedMutex
from .process_worker import (
    ProcessWorker,
    broadcast_options,
    kind_of,
    memory_of,
    reduce_options,
    tag_of,
    tensor_in,
)
from .shared_memory import MemoryFile, open_shared
from .shared_sum import DTYPES, NativeSum, SharedSum, TorchSum, UnlikeError, piece_of
from .socket_messages import Receive, Send
from .timeline import Operation
from .waits import OF_SOCKETS, Waits
from .works import CompletedWork, Copied, InMemory, MessageTransfer, Mutex, Pending, SumOfRows

NEVER = float("-inf")  # a receiver's launch: see timeline.last_launches
BYTES = b"uint8"  # a message of any length


class ProcessComm(Comm):
    """A worker process's end of a group. `ranks` are the group's members, numbered in the whole run."""

    def __init__(
        self,
        worker: ProcessWorker,
        ranks: list[int],
        name: str,
        group: dist.ProcessGroup | None,
        ledger: Ledger,
        root: "ProcessComm | None" = None,
    ) -> None:
        self._worker, self.ranks = worker, ranks
        self.root = root or self  # the group of all workers and servers of the run
        self.ledger, self.timeline = ledger, worker.timeline
        self.key_values = self._key_values = worker.key_values
        self.rank, self.size, self.name = ranks.index(worker.key_values.rank), len(ranks), name
        self.group = group  # torch's own group: what torch's reference implementations take
        self._tag = tag_of(name)
        self.on_gpus = all(worker.devices[rank] == "cuda" for rank in ranks)  # else messages go by way of the hosts
        self._others = tuple(rank for rank in ranks if rank != worker.key_values.rank)
        self._splits = self._barriers = self._shares = 0
        self.future_failed = False  # one of all_reduce_future: torch's error says nothing of peers
        self._of_futures: list[tuple[dist.Work, Operation, Mark, bool]] = []
        self._calls = None if group is None else Calls(worker.key_values, ranks, name)
        if self._calls is not None:
            worker.calls.append(self._calls)
        self.waits = Waits(worker, ranks, self._calls)
        self._sums = self._open_sums()

    @property
    def hosts(self) -> tuple[int, ...]:
        return numbered([self._worker.hosts[rank] for rank in self.ranks])

    # -- collectives

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Work:
        check_dense(tensor)
        self.ledger.count("all_reduce", wire.all_reduce_bytes(nbytes(tensor), self.size))
        if self._sums is not None and op == "sum" and tensor.dtype in DTYPES:
            return self._posted(self._sums, tensor)
        return self._collective(
            ("all_reduce", op, tensor.numel(), tensor.dtype),
            lambda group: group.allreduce([tensor], reduce_options(op)),
        )

    def sum_in_memory(self, tensor: Tensor) -> Work:
        check_dense(tensor)
        self.ledger.count("shared_memory", wire.all_reduce_bytes(nbytes(tensor), self.size))
        if self.size == 1:
            return CompletedWork()
        if self._sums is None or tensor.is_cuda:
            raise FabricError(
                f"the workers of {self.name} cannot sum in shared memory: they are on several hosts, or not on CPUs"
            )
        if tensor.dtype not in DTYPES:
            raise FabricError(f"{tensor.dtype} cannot be summed in shared memory; {', '.join(map(str, DTYPES))} can")
        return self._posted(self._sums, tensor)

    def _posted(self, sums: SharedSum, tensor: Tensor) -> Work:
        at, what = self.now(), f"in all_reduce of {self.name}"
        try:
            number = sums.post(tensor.detach())
        except UnlikeError as error:
            raise self.waits.unlike(error, what) from None
        return InMemory(self.waits, sums, number, what, self.timeline.launched(f"{self.name}#", "all_reduce", at))

    def _open_sums(self) -> SharedSum | None:
        """Every worker of the group calls it before anything is sent; None where its sums are not made in memory.

        Raises `HostMemoryError`.
        """
        on_cpus = all(self._worker.devices[rank] == "cpu" for rank in self.ranks)
        if self.size == 1 or max(self.hosts) > 0 or not on_cpus:
            return None
        shared, told = None, ""
        if self.rank == 0:
            kind, piece = NativeSum if NativeSum.available() else TorchSum, piece_of(self.size)
            shared, told = MemoryFile(kind.room(self.size, piece)), f"{kind.__name__} {piece}"
            kind.make(shared.memory, self.size)
        memory, told, _ = self._of_chief(f"sums/{self.name}", "memory for sums", shared, told)
        name, said = told.split()
        kind = NativeSum if name == NativeSum.__name__ else TorchSum
        if kind is NativeSum and not NativeSum.available():
            raise FabricError(
                f"worker {self.key_values.rank} cannot load what another worker has compiled: see native/"
            )
        sums = kind(memory, self.rank, self.size, int(said))
        self.at_close(sums.close)
        return sums

    def broadcast(self, tensor: Tensor, src: int) -> Work:
        check_dense(tensor)
        distance = (self.rank - src) % self.size
        self.ledger.count("broadcast", wire.broadcast_bytes(nbytes(tensor), self.size, distance))
        return self._collective(
            ("broadcast", f"from {src}", tensor.numel(), tensor.dtype),
            lambda group: group.broadcast([tensor], broadcast_options(src)),
        )

    def iall_gather(self, tensor: Tensor) -> Work:
        check_contiguous(tensor)
        mine = tensor[self.rank]
        self.ledger.count("all_gather", wire.all_gather_bytes(nbytes(mine), self.size))
        if tensor.is_cuda and not self.on_gpus and self.size > 1:
            rows = tensor.cpu()
            with self.ledger.aside():
                return Copied(self.iall_gather(rows), rows, tensor)
        if tensor.is_cuda or self.size == 1:
            return self._collective(
                ("all_gather", "", mine.numel(), mine.dtype),
                lambda group: all_gather_into(group, tensor.view(-1), mine.view(-1)),
            )
        # everyone to everyone, the same bytes, over our own sockets: 3.1 ms where gloo takes 7.5 (2 x 5.8 MB)
        at, what, tag = self.now(), f"in all_gather of {self.name}", tag_of(f"{self.name}#all_gather")
        others = [(self.rank + i) % self.size for i in range(1, self.size)]
        receives = [self._wish(tensor[other], (self._peer(other),), tag) for other in others]
        for receive in receives:
            self._worker.sockets.post(receive)
        sends = [self._started(tag, self._peer(other), mine, what) for other in others]
        return MessageTransfer(
            self.waits, [*receives, *sends], what, self.timeline.launched(f"{self.name}#", "all_gather", at)
        )

    def ireduce_scatter(self, tensor: Tensor, out: Tensor, scratch: Tensor) -> Work:
        check_contiguous(tensor)
        check_contiguous(scratch)
        self.ledger.count("reduce_scatter", wire.reduce_scatter_bytes(nbytes(tensor), self.size))
        if self.size == 1:
            out.copy_(tensor)
            return CompletedWork()
        # gloo's own reduce_scatter is an all-reduce inside, at twice the bytes (seen in /proc/self/io)
        arriving = self._scattered("reduce_scatter", tensor, scratch)
        return SumOfRows(arriving, scratch.view(self.size, *out.shape), out)

    def all_to_all(self, tensor: Tensor) -> Tensor:
        self.ledger.count("all_to_all", wire.all_to_all_bytes(nbytes(tensor), self.size))
        if self.size == 1:
            return tensor.clone()
        received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        self._scattered("all_to_all", tensor.contiguous(), received).wait()
        return received

    def _scattered(self, primitive: str, tensor: Tensor, received: Tensor) -> Work:
        return self._collective(
            (primitive, "", tensor.numel(), tensor.dtype),
            lambda group: group.alltoall_base(received, tensor, [], []),
        )

    def barrier(self) -> None:
        self._barriers += 1
        start = self.now()
        operation = self.timeline.launched(f"{self.name}#barrier", "barrier", start)
        prefix = f"barrier/{self.name}/{self._barriers}"
        self.key_values.doing(f"in barrier of {self.name}")
        try:
            self._all_say(prefix, "", f"the barrier of {self.name}")
        finally:
            self.key_values.doing("computing")
        self.timeline.add(operation, start, self.now())

    def _collective(self, call: Call, launch: Callable[[dist.ProcessGroup], dist.Work]) -> Work:
        """Raises `MessageError` where others call something else."""
        if self.group is None or self._calls is None:
            return CompletedWork()
        group, primitive = self.group, call[0]
        what = f"in {primitive} of {self.name}"
        self._calls.check(call, what)
        launched = self.mark()
        work = self.waits.blocked(what, lambda: without_saved_hooks(lambda: launch(group)))
        operation = self.timeline.launched(f"{self.name}#", primitive, self.waits.roughly(launched))
        return Pending(self.waits, work, what, operation, launched)

    def all_reduce_future(self, tensor: Tensor, blocks: bool) -> "torch.futures.Future[list[Tensor]]":
        """All-reduce for torch's own implementations, which wait by themselves and out of our sight.

        `blocks`: no work remains for the caller after this call; the wait until it is done is recorded.
        """
        self.ledger.count("all_reduce", wire.all_reduce_bytes(nbytes(tensor), self.size))
        assert self.group is not None
        launched = self.mark()
        at = self.waits.roughly(launched)
        operation = self.timeline.launched(f"{self.name}#", "all_reduce", at)
        group, options = self.group, reduce_options("sum")
        work = without_saved_hooks(lambda: group.allreduce([tensor], options))
        if self._worker.event is not None:
            self._of_futures.append((work, operation, launched, blocks))
            return work.get_future()

        def done(finished: "torch.futures.Future[list[Tensor]]") -> list[Tensor]:
            self.timeline.add(operation, at, self.now() if blocks else at)
            try:
                return finished.value()
            except RuntimeError:
                self.future_failed = True
                raise

        return work.get_future().then(done)

    def wait_for_futures(self) -> None:
        """Waits for all-reduces of `all_reduce_future` that only a GPU's stream waits for. Call it after backward."""
        for work, operation, launched, blocks in self._of_futures:
            self.waits.for_work(work, f"in all_reduce of {self.name}", None)
            launch, end = self.times(launched, self.mark())
            self.timeline.add(operation, launch, end if blocks else launch, launch)
        self._of_futures.clear()

    # -- point to point

    def send(self, tensor: Tensor, dst: int) -> None:
        """Sends and waits. After a `HangError` the message is still under way and its tensor must not be touched."""
        self.isend(tensor, dst).wait()

    def recv(self, tensor: Tensor, src: int) -> None:
        check_contiguous(tensor)
        if tensor.is_cuda:
            self.irecv(tensor, src).wait()
            return
        start, what, channel = self.now(), f"in recv from worker {self.ranks[src]}", self._channel(src, self.rank)
        self._receive(self._wish(tensor, (self._peer(src),)), what)
        self.timeline.add(self.timeline.launched(channel, "recv", NEVER), start, self.now())

    def recv_message(self, src: int, most: int) -> Tensor:
        start, what, channel = self.now(), f"in recv from worker {self.ranks[src]}", self._channel(src, self.rank)
        receive = Receive(self._tag, (self._peer(src),), None, most=most, kind=BYTES)
        self._receive(receive, what)
        self.timeline.add(self.timeline.launched(channel, "recv", NEVER), start, self.now())
        content = receive.content
        return torch.frombuffer(content, dtype=torch.uint8) if len(content) else torch.empty(0, dtype=torch.uint8)

    def isend(self, tensor: Tensor, dst: int) -> Work:
        check_contiguous(tensor)
        at, what, channel = self.now(), f"in send to worker {self.ranks[dst]}", self._channel(self.rank, dst)
        if tensor.is_cuda:
            tensor = tensor.cpu()
        sending = self._started(self._tag, self._peer(dst), tensor, what)
        self.ledger.count("send", nbytes(tensor))
        return MessageTransfer(self.waits, [sending], what, self.timeline.launched(channel, "send", at))

    def irecv(self, tensor: Tensor, src: int) -> Work:
        check_contiguous(tensor)
        what, channel = f"in recv from worker {self.ranks[src]}", self._channel(src, self.rank)
        if tensor.is_cuda:
            arrived = torch.empty_like(tensor, device="cpu")
            return Copied(self.irecv(arrived, src), arrived, tensor)
        receive = self._wish(tensor, (self._peer(src),))
        self._worker.sockets.post(receive)
        return MessageTransfer(self.waits, [receive], what, self.timeline.launched(channel, "recv", NEVER))

    def recv_any(self, tensor: Tensor) -> int:
        check_contiguous(tensor)
        assert not tensor.is_cuda, "recv_any takes CPU tensors only: nccl cannot receive from whoever is first"
        assert self._others, f"{self.name} has one worker: nobody to talk to"
        start = self.now()
        receive = self._wish(tensor, self._others, from_anyone=True)
        self._receive(receive, "in recv_any")
        return self._source_of(receive, start)

    def try_recv_any(self, tensor: Tensor) -> int | None:
        check_contiguous(tensor)
        start = self.now()
        receive = self._wish(tensor, self._others, from_anyone=True)
        try:
            done = self._worker.sockets.try_receive(receive)
        except OF_SOCKETS as error:
            raise self.waits.named(error, "in try_recv_any") from None
        return self._source_of(receive, start) if done else None

    def _wish(
        self, tensor: Tensor, sources: tuple[int, ...], tag: int | None = None, from_anyone: bool = False
    ) -> Receive:
        """Returns a receive for a message of the group, or of another tag."""
        return Receive(self._tag if tag is None else tag, sources, memory_of(tensor), from_anyone, kind=kind_of(tensor))

    def _source_of(self, receive: Receive, start: float) -> int:
        src = self.ranks.index(receive.source)
        channel = self._channel(src, self.rank)
        self.timeline.add(self.timeline.launched(channel, "recv", NEVER), start, self.now())
        return src

    def _peer(self, rank: int) -> int:
        """A worker of this group, numbered in the whole run."""
        assert rank != self.rank, f"worker {rank} of {self.name} talks to itself"
        return self.ranks[rank]

    def _started(self, tag: int, peer: int, tensor: Tensor, what: str) -> Send:
        try:
            return self._worker.sockets.send(tag, peer, memory_of(tensor), kind_of(tensor))
        except OF_SOCKETS as error:
            raise self.waits.named(error, what) from None

    def _receive(self, receive: Receive, what: str) -> None:
        self._worker.sockets.post(receive)
        try:
            self.waits.for_message(receive, what)
        finally:
            if not receive.done:
                self._worker.sockets.abandon(receive)

    def _channel(self, src: int, dst: int) -> str:
        return f"{self.name}:{src}>{dst}"

    # -- the rest

    def shared(self, tensor: Tensor) -> Tensor:
        def make(memory: mmap.mmap) -> None:
            tensor_in(memory, tensor).copy_(tensor)

        memory = self._share(nbytes(tensor), make, "shared memory", f"{tuple(tensor.shape)} of {tensor.dtype}")
        return tensor_in(memory, tensor)

    def mutex(self) -> AbstractContextManager[None]:
        memory = self._share(ROOM, lambda memory: SharedMutex(memory, create=True), "a mutex")
        return Mutex(self.waits, SharedMutex(memory), f"in a mutex of {self.name}")

    def _share(self, size: int, make: Callable[[mmap.mmap], object], what: str, holds: str = "") -> mmap.mmap:
        """Worker 0 makes `size` bytes of the host's memory and all use them. `holds`: what, for each of them.

        Raises `HostMemoryError`, or `MessageError` where not all say the same of what it holds.
        """
        if max(self.hosts) > 0:
            raise FabricError(f"{what} cannot be had: the workers of {self.name} are on several hosts")
        self._shares += 1
        shared = None
        if self.rank == 0:
            shared = MemoryFile(max(size, 1))
            make(shared.memory)
        memory, _, said = self._of_chief(f"shared/{self.name}/{self._shares}", what, shared, holds=holds)
        for rank, its in zip(self.ranks, said, strict=True):
            if its != said[0]:
                raise MessageError(
                    f"worker {self.key_values.rank} in {what} of {self.name}: for worker {rank} it holds {its}, where "
                    f"worker {self.ranks[0]} has put {said[0]}"
                )
        return memory

    def _of_chief(
        self, prefix: str, what: str, shared: MemoryFile | None, told: str = "", holds: str = ""
    ) -> tuple[mmap.mmap, str, list[str]]:
        """All map the memory that worker 0 has made: its `shared`, which others have not.

        Returns it, what worker 0 has `told` of it, and what each of them says that it `holds`.
        """
        first = self._all_say(prefix, "" if shared is None else f"{shared.place} {told}", what)[0]
        place, _, told = first.partition(" ")
        memory = open_shared(place) if shared is None else shared.memory
        said = self._all_say(f"{prefix}/used", holds, what)
        if shared is not None:
            shared.close()
        return memory, told, said

    def split(self, color: int | None, axis: str | None = None) -> "ProcessComm | None":
        self._splits += 1
        prefix = f"split/{self.name}/{self._splits}"
        said = self._all_say(prefix, str(color), f"the split of {self.name}")
        if color is None:
            return None
        ranks = [rank for rank, its in zip(self.ranks, said, strict=True) if its == str(color)]
        name = f"{self.name}/{self._splits}.{color}"
        rank = ranks.index(self._key_values.rank)
        on_gpus = all(self._worker.devices[rank] == "cuda" for rank in ranks)
        group = self._worker.groups.make(name, rank, len(ranks), on_gpus) if len(ranks) > 1 else None
        ledger = self.ledger if axis is None else self.ledger.along(axis)
        return ProcessComm(self._worker, ranks, name, group, ledger, self.root)

    def _all_say(self, prefix: str, value: str, what: str) -> list[str]:
        """Every worker of the group says something; returns all of it. Raises `HangError` or `PeerLostError`."""
        try:
            return self._key_values.set_and_wait(prefix, self.ranks, value, what)
        except PeerLostError as error:
            raise PeerLostError(str(error), self.waits.rank_of(error.rank)) from None

    @property
    def device(self) -> torch.device:
        return self._worker.groups.device

    @property
    def devices(self) -> tuple[str, ...]:
        """The type of each worker's device."""
        return tuple(self._worker.devices[rank] for rank in self.ranks)

    @property
    def store(self) -> dist.Store:
        """Returns the store for groups that torch makes."""
        return self._worker.groups.store

    def make_group(self, store: dist.Store, rank: int, size: int) -> dist.ProcessGroup:
        """A group of torch's over `store`, with this fabric's backends and timeout."""
        return self._worker.groups.over(store, rank, size, self.name, self.on_gpus)

    def lost(self) -> frozenset[int]:
        return self.waits.lost()

    def seen(self, keys: list[str]) -> list[bytes | None]:
        """Returns the values of the run's store under `keys`, from any thread. Raises RuntimeError if the store has
        gone.
        """
        return self._key_values.seen(keys)

    def now(self) -> float:
        return self.waits.now()

    def mark(self) -> Mark:
        return self.waits.mark()

    def times(self, *marks: Mark) -> tuple[float, ...]:
        return self.waits.times(*marks)

    def elapse(self, seconds: float) -> None:
        time.sleep(seconds)

    def at_close(self, do: Callable[[], None]) -> None:
        self._worker.closing.append(do)

    def close(self) -> None:
        """Leave the run; others do not take it for a death."""
        while self._worker.closing:
            self._worker.closing.pop()()
        self._worker.groups.abort()  # all is over: else nccl ends by itself as Python does, with a warning, or waits
        while self._worker.processes:
            os.close(self._worker.processes.popitem()[1])
        self._worker.sockets.close()
        self._key_values.close()
        if (server := self._worker.server) is not None:
            server.wait_for_clients(self._worker.groups.timeout)
            server.close()
