"""One worker's end of a fabric. An algorithm is written against this class and cannot tell fabrics apart.

Names follow torch.distributed. Every call blocks until this worker may reuse its tensors, unless it says that it
returns `Work`. Every wait has a timeout and raises `HangError`, which names who was missing, or `PeerLostError`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, cast

import torch
from torch import Tensor

from .key_values import KeyValues
from .ledger import Ledger
from .marks import Mark
from .timeline import Timeline

ReduceOp = Literal["sum", "max", "min"]


class Work(ABC):
    """An operation under way. The tensors it was given must not be touched until `wait` returns."""

    @abstractmethod
    def wait(self) -> None: ...


class Comm(ABC):
    """One worker's end of a fabric, or of a sub-group of it.

    `rank` and `size` are those of the group. `key_values`, `ledger` and `timeline` are the worker's.
    Sub-groups share them, but for the ledger of a group along an axis, which counts for the worker's, too.
    """

    rank: int
    size: int
    name: str
    key_values: KeyValues
    ledger: Ledger
    timeline: Timeline

    @property
    @abstractmethod
    def hosts(self) -> tuple[int, ...]:
        """The host of each worker of the group, numbered from 0 in the order of ranks."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Work:
        """Reduce `tensor` over the group, in place, on every worker alike bit for bit."""

    @abstractmethod
    def sum_in_memory(self, tensor: Tensor) -> Work:
        """Sums `tensor` like `all_reduce`, through memory that the group's workers share.

        Raises `FabricError` where they are on several hosts, or the tensor is not on the CPU.
        """

    @abstractmethod
    def broadcast(self, tensor: Tensor, src: int) -> Work:
        """Fill `tensor` with that of worker `src`, in place."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[...] on each worker -> [size, ...] on all."""
        gathered = tensor.new_empty(self.size, *tensor.shape)
        gathered[self.rank] = tensor.detach()
        self.iall_gather(gathered).wait()
        return gathered

    @abstractmethod
    def iall_gather(self, tensor: Tensor) -> Work:
        """[size, ...], of which each worker has filled its own row -> all rows, in place."""

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        """[size * k, ...] on each worker -> this worker's [k, ...] of the sum."""
        tensor = tensor.detach().contiguous()
        out = tensor.new_empty(len(tensor) // self.size, *tensor.shape[1:])
        self.ireduce_scatter(tensor, out, torch.empty_like(tensor)).wait()
        return out

    @abstractmethod
    def ireduce_scatter(self, tensor: Tensor, out: Tensor, scratch: Tensor) -> Work:
        """Does the same as `reduce_scatter`, from a contiguous tensor into `out`, which may be a part of `tensor`.

        `scratch`: like `tensor`, for what arrives meanwhile.
        """

    @abstractmethod
    def all_to_all(self, tensor: Tensor) -> Tensor:
        """[size * k, ...]: chunk j goes to worker j; returns [size * k, ...], chunk j from worker j."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all. Waits on as long as the missing show that they are alive (a long evaluation is no hang)."""

    @abstractmethod
    def send(self, tensor: Tensor, dst: int) -> None: ...

    @abstractmethod
    def recv(self, tensor: Tensor, src: int) -> None:
        """Fill `tensor` with the next message from `src`. Messages of one sender arrive in order."""

    @abstractmethod
    def isend(self, tensor: Tensor, dst: int) -> Work: ...

    @abstractmethod
    def irecv(self, tensor: Tensor, src: int) -> Work: ...

    @abstractmethod
    def recv_message(self, src: int, most: int) -> Tensor:
        """The next message from `src`, whatever its length: uint8 [length], on the CPU.

        It is sent by `isend` of a tensor of bytes. Raises `MessageError` for one of more than `most` bytes.
        """

    @abstractmethod
    def recv_any(self, tensor: Tensor) -> int:
        """Fill `tensor` with a message from whoever is first; returns the sender.

        Raises `PeerLostError` once for each worker of the group that dies, and may be called again after that.
        """

    @abstractmethod
    def try_recv_any(self, tensor: Tensor) -> int | None:
        """Does the same as `recv_any` when a message has arrived already, else returns None. It neither waits nor
        reports deaths.
        """

    @abstractmethod
    def shared(self, tensor: Tensor) -> Tensor:
        """A tensor of the same content as worker 0's `tensor`, in memory that the whole group on this host shares.

        Every worker of the group must call it.
        """

    @abstractmethod
    def mutex(self) -> AbstractContextManager[None]:
        """A lock that one worker of the group on this host holds at a time, any number of times.

        Every worker of the group must call this.
        """

    @abstractmethod
    def split(self, color: int | None, axis: str | None = None) -> "Comm | None":
        """The sub-group of those who gave the same `color`, in the order of their ranks; None gives none.

        Every worker of the group must call it. `axis`: of the mesh, along which the sub-group's bytes are counted; None
        for that of this group.
        """

    @abstractmethod
    def lost(self) -> frozenset[int]:
        """The workers of the group that are known to have died."""

    def digest(self) -> str | None:
        """Returns a digest that tells apart two runs of events, where the same run repeats them; None where events have
        no order.
        """
        return None

    @abstractmethod
    def now(self) -> float:
        """Seconds on this fabric's clock, the same for all its workers."""

    def mark(self) -> Mark:
        """Marks this moment on the worker's device."""
        return self.now()

    def times(self, *marks: Mark) -> tuple[float, ...]:
        """Returns when the marks were, on the fabric's clock. Waits until the device has come to the last."""
        return cast("tuple[float, ...]", marks)

    def touch(self, nbytes: float) -> None:
        """Accounts for a pass through so many bytes of this worker's memory, which takes time where time is
        modelled.
        """

    def catch_up(self) -> None:
        """Lets all that is earlier on the fabric's clock happen first, where that is modelled."""

    @abstractmethod
    def elapse(self, seconds: float) -> None:
        """Let time pass, as if this worker were that much slower."""


def numbered(hosts: Sequence[object]) -> tuple[int, ...]:
    """Returns `Comm.hosts` for workers whose hosts have any names."""
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(host, len(numbers)) for host in hosts)


def nbytes(tensor: Tensor) -> int:
    return tensor.nbytes


def check_dense(tensor: Tensor) -> None:
    """Raises AssertionError for holes between entries: gloo writes numel() entries from data_ptr() on."""
    assert tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor), "a tensor with holes"


def check_contiguous(tensor: Tensor) -> None:
    """Raises AssertionError for a tensor that is no message: its bytes do not lie in order."""
    assert tensor.is_contiguous(), "a message is a contiguous tensor"
