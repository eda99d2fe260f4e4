"""The objects that all groups of a worker process share, and the forms of what it sends."""

import hashlib
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from .base import ReduceOp, nbytes
from .calls import Calls
from .errors import PeerLostError
from .groups import Groups
from .key_values import StoreKeyValues
from .ledger import Ledger
from .marks import DeviceEvent
from .sockets import Sockets
from .store import StoreServer
from .timeline import Timeline

_REDUCE = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
POLL = 2e-5  # seconds between two looks at a GPU


@dataclass(frozen=True)
class ProcessWorker:
    """The objects that all groups of a worker share."""

    key_values: StoreKeyValues
    ledger: Ledger
    timeline: Timeline
    sockets: Sockets
    groups: Groups
    hosts: list[str]  # of every worker of the run
    devices: list[str]  # their types, "cpu" or "cuda", of every worker of the run
    origin: float  # of the clock
    server: StoreServer | None  # of the run's store, where this worker serves it
    event: Callable[[], DeviceEvent] | None = None  # makes one of this worker's GPU
    closing: list[Callable[[], None]] = field(default_factory=list)
    calls: list[Calls] = field(default_factory=list)  # of its groups
    processes: dict[int, int] = field(default_factory=dict)  # descriptors of those on this host that are watched

    def watch(self, rank: int, process: int) -> None:
        """Makes a descriptor that becomes readable once the process has ended. Raises `PeerLostError`."""
        try:
            self.processes[rank] = os.pidfd_open(process)
        except ProcessLookupError:
            raise PeerLostError(f"worker {self.key_values.rank} lost a peer: worker {rank} has died") from None


def tag_of(name: str) -> int:
    """Returns the number of a group in messages' headers."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, not a copy."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def kind_of(tensor: Tensor) -> bytes:
    """Returns the name of a dtype in messages' headers."""
    return str(tensor.dtype).removeprefix("torch.").encode()[:8]


def reduce_options(op: ReduceOp) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = cast(Any, _REDUCE[op])
    return options


def broadcast_options(src: int) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = src, 0
    return options


def comes(is_over: Callable[[], bool], seconds: float) -> bool:
    """Waits so many seconds at most. Returns whether `is_over` came true."""
    until = time.monotonic() + seconds
    while not is_over():
        if time.monotonic() > until:
            return False
        time.sleep(POLL)
    return True


def tensor_in(memory: mmap.mmap, like: Tensor) -> Tensor:
    """A tensor of that shape and type whose entries are the bytes of `memory`, from its start."""
    return torch.frombuffer(memory, dtype=torch.uint8)[: nbytes(like)].view(like.dtype).view(like.shape)
