"""The handles of the process fabric for operations that are under way."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from .base import Work
from .marks import Mark
from .mutex import SharedMutex
from .shared_sum import SLICE, SharedSum, UnlikeError
from .socket_messages import Receive, Send
from .timeline import Operation
from .waits import Waits


class Pending(Work):
    """Waits for work of torch's, which the worker's device came to at `launched`."""

    def __init__(self, waits: Waits, work: dist.Work | None, what: str, operation: Operation, launched: Mark) -> None:
        self._waits, self._work, self._what, self._operation = waits, work, what, operation
        self._launched = launched

    def wait(self) -> None:
        if self._work is None:
            return
        waits, work = self._waits, self._work
        self._work = None
        since = waits.mark()
        waits.for_work(work, self._what, since, looks=True)
        launch, start, end = waits.times(self._launched, since, waits.mark())
        waits.timeline.add(self._operation, start, end, launch)


class Copied(Work):
    """`work` fills `arrived`, on the host, which a wait copies to `tensor`, on a GPU."""

    def __init__(self, work: Work, arrived: Tensor, tensor: Tensor) -> None:
        self._work, self._tensor = work, tensor
        self._arrived: Tensor | None = arrived

    def wait(self) -> None:
        self._work.wait()
        if self._arrived is not None:  # a second wait leaves `tensor` as it is by then
            self._tensor.copy_(self._arrived)
            self._arrived = None


class CompletedWork(Work):
    def wait(self) -> None: ...


class InMemory(Work):
    """A sum under way in shared memory. After a `HangError` one may wait again."""

    def __init__(self, waits: Waits, sums: SharedSum, number: int, what: str, operation: Operation) -> None:
        self._waits, self._sums, self._number, self._what, self._operation = waits, sums, number, what, operation
        self._waited = False

    def wait(self) -> None:
        if self._waited:
            return
        waits, start = self._waits, self._waits.now()
        try:
            if not self._sums.wait(self._number, SLICE):
                waits.for_sum(self._sums, self._number, self._what)
        except UnlikeError as error:
            raise waits.unlike(error, self._what) from None
        self._waited = True
        waits.timeline.add(self._operation, start, waits.now())


class SumOfRows(Work):
    """Rows that arrive, and are summed then."""

    def __init__(self, arriving: Work, rows: Tensor, out: Tensor) -> None:
        self._arriving, self._rows, self._out = arriving, rows, out
        self._done = False

    def wait(self) -> None:
        if self._done:
            return
        self._arriving.wait()
        self._done = True
        # not torch.sum: over so few rows it takes 2.8 ms where this takes 0.4 (2 x 1.5 M entries)
        torch.add(self._rows[0], self._rows[1], out=self._out)
        for row in self._rows[2:]:
            self._out.add_(row)


class MessageTransfer(Work):
    """Messages of ours under way that are one operation. After a `HangError` one may wait again."""

    def __init__(self, waits: Waits, messages: Sequence[Send | Receive], what: str, operation: Operation) -> None:
        self._waits, self._messages, self._what, self._operation = waits, messages, what, operation
        self._waited = False

    def wait(self) -> None:
        if self._waited:
            return
        waits, start = self._waits, self._waits.now()
        for message in self._messages:
            waits.for_message(message, self._what)
        self._waited = True
        waits.timeline.add(self._operation, start, waits.now())


class Mutex(AbstractContextManager[None]):
    """A `SharedMutex` as a worker of a group uses it. Raises `HangError`."""

    def __init__(self, waits: Waits, mutex: SharedMutex, what: str) -> None:
        self._waits, self._mutex, self._what = waits, mutex, what

    def __enter__(self) -> None:
        if not self._mutex.acquire(0):
            self._waits.for_mutex(self._mutex, self._what)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mutex.release()
