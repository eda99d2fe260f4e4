"""The handles of the virtual cluster for operations that are under way."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from .base import Work
from .timeline import Operation, Timeline
from .virtual_state import VirtualMeeting, VirtualMessage, VirtualMutex, VirtualWorker


class VirtualWaiter(Protocol):
    """The `VirtualComm` that hands works out, as they use it."""

    timeline: Timeline

    def now(self) -> float: ...
    def see_off(self, sent: "SentMessage") -> float: ...
    def complete(self, receive: "Receiving", tensor: Tensor, src: int) -> None: ...
    def launched(self, meeting: VirtualMeeting) -> Operation: ...
    def attend(self, meeting: VirtualMeeting, operation: Operation | None = None) -> Any: ...
    def acquire(self, lock: VirtualMutex) -> None: ...
    def release(self, lock: VirtualMutex) -> None: ...


class SentMessage(Work):
    """A message: its sender may go on when its last byte has left."""

    def __init__(self, comm: VirtualWaiter, sending: Operation, dst: int) -> None:
        self._comm, self._sending, self.dst = comm, sending, dst
        self.left: float | None = None  # when it has
        self.sleeper: VirtualWorker | None = None
        self._done = False

    def wait(self) -> None:
        if self._done:
            return
        self._done = True
        comm = self._comm
        start = comm.now()
        comm.timeline.add(self._sending, start, comm.see_off(self))


class Receiving(Work):
    """A posted receive: it gets the message that comes after those of receives posted before it."""

    def __init__(self, comm: VirtualWaiter, tensor: Tensor, src: int) -> None:
        self._comm, self._tensor, self._src = comm, tensor, src
        self.message: VirtualMessage | None = None
        self.sleeper: VirtualWorker | None = None
        self._done = False

    def wait(self) -> None:
        if not self._done:
            self._done = True
            self._comm.complete(self, self._tensor, self._src)


class CollectiveWork(Work):
    """`part`: what of the meeting's result goes into `tensor`."""

    def __init__(
        self,
        comm: VirtualWaiter,
        meeting: VirtualMeeting,
        tensor: Tensor,
        part: Callable[[Tensor], Tensor] = lambda all: all,
    ) -> None:
        self._comm, self._meeting, self._tensor, self._part = comm, meeting, tensor, part
        self._operation = comm.launched(meeting)
        self._done = False

    def wait(self) -> None:
        if not self._done:
            self._done = True
            write(self._tensor, self._part(self._comm.attend(self._meeting, self._operation)))


class HeldMutex(AbstractContextManager[None]):
    """A mutex of one worker, to be entered any number of times."""

    def __init__(self, comm: VirtualWaiter, lock: VirtualMutex) -> None:
        self._comm, self._lock = comm, lock

    def __enter__(self) -> None:
        self._comm.acquire(self._lock)

    def __exit__(self, *error: object) -> None:
        self._comm.release(self._lock)


def write(tensor: Tensor, value: Tensor) -> None:
    """Unseen by autograd, as a process's network writes."""
    tensor.data.copy_(value)
