"""torch's default process group, for libraries that will have no other (DeepSpeed, FSDP2, torch's pipelines).

It is a backend of our own over the fabric's (gloo on CPUs, nccl on GPUs), so that what such a library sends is in the
ledger, when it is blocked is in the timeline, and a timeout or a death is named as everywhere else. Whoever waits for
nccl here waits in this process, and not in a stream alone.

gloo's reduce_scatter is an all-reduce inside (seen in /proc/self/io), and is counted as what it sends.
"""

# torch calls these by position, and its stubs name and count the parameters otherwise than its callers do
# pyright: reportIncompatibleMethodOverride=false

from collections.abc import Callable, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..compat.process_groups import AllgatherOptions, is_registered
from ..compat.saved_hooks import without_saved_hooks
from . import ledger as wire
from .base import nbytes
from .marks import Mark
from .process import NEVER, ProcessComm
from .timeline import Operation
from .waits import Waits

BACKEND = "paceline"


def torch_world(comm: ProcessComm) -> None:
    """Makes torch's default process group span the workers of `comm` until it is closed. All of them call this."""
    if not is_registered(BACKEND):
        dist.Backend.register_backend(BACKEND, _make, extended_api=True, devices=["cpu", "cuda"])
    assert not dist.is_initialized(), "torch has a default process group already"
    _Current.comm = comm
    dist.init_process_group(
        BACKEND, store=dist.PrefixStore(f"torch/{comm.name}", comm.store), rank=comm.rank, world_size=comm.size
    )
    comm.at_close(dist.destroy_process_group)


class _Current:
    comm: ProcessComm | None = None  # torch makes groups by a registered function, which is given no more than a store


def _make(options: Any, _: Any) -> "_CountedGroup":
    assert _Current.comm is not None
    return _CountedGroup(_Current.comm, options)


class _CountedGroup(dist.ProcessGroup):
    """Calls the fabric's group, having written down what it sends. What it does not know, it refuses."""

    def __init__(self, comm: ProcessComm, options: Any) -> None:
        super().__init__(options.group_rank, options.group_size)  # pyright: ignore[reportCallIssue] stubs lack it
        self._comm, self._store = comm, options.store
        ranks = options.global_ranks_in_group or range(comm.size)
        self._channel = f"{comm.name}/torch/{','.join(map(str, ranks))}#"
        self._inner = comm.make_group(options.store, options.group_rank, options.group_size)

    # what torch asks of a group

    def getBackendName(self) -> str:
        return BACKEND

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def get_group_store(self) -> dist.Store:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None: ...

    def _set_sequence_number_for_group(self) -> None: ...

    def shutdown(self) -> None: ...

    def abort(self) -> None: ...

    # collectives

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        opts = opts or dist.AllreduceOptions()
        size = wire.all_reduce_bytes(_payload(tensors), self.size())
        return self._launch("all_reduce", size, lambda: self._inner.allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        works = [self.allreduce([tensor], _all_reduce_like(opts)) for tensor in tensors]
        return _All(works)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        distance = (self.rank() - opts.rootRank) % self.size()
        size = wire.broadcast_bytes(_payload(tensors), self.size(), distance)
        return self._launch("broadcast", size, lambda: self._inner.broadcast(tensors, opts))

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        # a binomial tree towards the root: everyone but the root sends once
        size = _payload(tensors) if self.rank() != opts.rootRank else 0
        return self._launch("reduce", size, lambda: self._inner.reduce(tensors, opts))

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        opts = opts or AllgatherOptions()
        size = wire.all_gather_bytes(_payload(inputs), self.size())
        return self._launch("all_gather", size, lambda: self._inner.allgather(outputs, inputs, opts))

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        opts = opts or AllgatherOptions()
        size = wire.all_gather_bytes(nbytes(input), self.size())
        return self._launch("all_gather", size, lambda: self._inner._allgather_base(output, input, opts))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None, **_: Any) -> dist.Work:
        return self._allgather_base(output, input, opts)

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        pairs = zip(outputs, inputs, strict=True)
        return _All([self._allgather_base(output, input, opts) for output, input in pairs])

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        opts = opts or dist.ReduceScatterOptions()
        sends = wire.reduce_scatter_bytes if input.is_cuda else wire.all_reduce_bytes
        size = sends(nbytes(input), self.size())
        return self._launch("reduce_scatter", size, lambda: self._inner._reduce_scatter_base(output, input, opts))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None, **_: Any) -> dist.Work:
        return self._reduce_scatter_base(output, input, opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        pairs = zip(outputs, inputs, strict=True)
        return _All([self._reduce_scatter_base(output, input, opts) for output, input in pairs])

    def alltoall_base(
        self, output: Tensor, input: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> dist.Work:
        size = wire.all_to_all_bytes(nbytes(input), self.size())
        opts = opts or dist.AllToAllOptions()
        return self._launch(
            "all_to_all", size, lambda: self._inner.alltoall_base(output, input, output_sizes, input_sizes, opts)
        )

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._launch("barrier", 0, lambda: self._inner.barrier(dist.BarrierOptions()))

    # point to point: each way between two workers has a channel of its own. A GPU's tensors go by way of the hosts:
    # two messages of nccl that cross wait for each other, unless both workers queue them as one group of operations

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> dist.Work:
        way, sent = f"{self.rank()}>{dstRank}", [tensor.cpu() for tensor in tensors]
        return self._launch("send", _payload(tensors), lambda: self._inner.send(sent, dstRank, tag), way)

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> dist.Work:
        way, on_host = f"{srcRank}>{self.rank()}", [_on_host(tensor) for tensor in tensors]

        def arrive() -> None:
            for tensor, arrived in zip(tensors, on_host, strict=True):
                if tensor is not arrived:
                    tensor.copy_(arrived)

        return self._launch("recv", 0, lambda: self._inner.recv(on_host, srcRank, tag), way, arrive)

    def _start_coalescing(self, device: torch.device) -> None: ...

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return _All([])

    def _launch(
        self,
        primitive: str,
        size: int | Fraction,
        launch: Callable[[], dist.Work | None],
        way: str = "",
        then: Callable[[], None] = lambda: None,
    ) -> dist.Work:
        """`way`: "source>destination" of a message, in this group's ranks. `then`: to be done once it is over."""
        comm, waits = self._comm, self._comm.waits
        what = f"in torch's {primitive} {way and f'{way} '}of {self._comm.name}"
        if size:
            comm.ledger.count(primitive, size)
        launched = waits.mark()
        at = NEVER if primitive == "recv" else waits.roughly(launched)
        work = waits.blocked(what, lambda: without_saved_hooks(launch)) or _InStream(waits.mark(), launched)
        operation = comm.timeline.launched(f"{self._channel}{way}", primitive, at)
        return _Counted(waits, work, what, operation, launched, then, message=bool(way))


class _Counted(dist.Work):
    """A fabric's work whose wait is on the timeline."""

    def __init__(
        self,
        waits: Waits,
        work: dist.Work,
        what: str,
        operation: Operation,
        launched: Mark,
        then: Callable[[], None],
        message: bool,
    ) -> None:
        super().__init__()
        self._waits, self._work, self._what, self._operation = waits, work, what, operation
        self._launched, self._then, self._message = launched, then, message
        self._waited = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if not self._waited:
            waits, work = self._waits, self._work
            since = work.since if isinstance(work, _InStream) else waits.mark()
            waits.for_work(work, self._what, since, message=self._message)
            self._then()
            launch, start, end = waits.times(self._launched, since, waits.mark())
            waits.timeline.add(self._operation, start, end, None if self._operation.launch == NEVER else launch)
            self._waited = True
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> "torch.futures.Future[Any]":
        return self._work.get_future()

    def result(self) -> list[Tensor]:
        return self._work.result()


class _InStream(dist.Work):
    """An operation that NCCL has queued in the current stream.

    NCCL returns no work for options with `asyncOp=False`: whatever the caller queues next runs after it.

    Args:
        end: where the stream is through with it
        since: where the stream came to it
    """

    def __init__(self, end: Mark, since: Mark) -> None:
        super().__init__()
        self._end, self.since = end, since

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return isinstance(self._end, float | int) or self._end.query()

    def is_success(self) -> bool:
        return True


class _All(dist.Work):
    """Several works as one."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for work in self._works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def synchronize(self) -> None:
        self.wait()


def _payload(tensors: Sequence[Tensor]) -> int:
    return sum(nbytes(tensor) for tensor in tensors)


def _on_host(tensor: Tensor) -> Tensor:
    """Returns room on the host for the entries of a GPU's tensor, and a CPU's tensor itself."""
    return torch.empty_like(tensor, device="cpu") if tensor.is_cuda else tensor


def _all_reduce_like(opts: Any) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    if opts is not None:
        options.reduceOp = opts.reduceOp
    return options
