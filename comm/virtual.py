"""The virtual cluster: every worker a thread, one running at a time, ordered by a virtual clock.

The gradients are real, the network and the compute times are modelled. A worker runs only while it is the earliest:
its (clock, rank) is the least of all that can run. Whatever moves its clock on (an elapsed second, a message that
arrives later, a collective) lets the earlier ones run first. So what it reads and writes, shared memory included, is in
the order of the clock, and the same seed gives the same bits, the same clock and the same order of events every time.

What happens aside from training (`Ledger.aside`: set-up, evaluation, checkpoints) takes no time and holds no link.

When no worker can run, each waits for another: a deadlock, which is found at once and named.
"""

import hashlib
import heapq
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import ledger as wire
from .base import Comm, ReduceOp, Work, nbytes
from .board import Board
from .errors import HangError
from .ledger import Ledger
from .network import Fabric, Network
from .timeline import Timeline

T = TypeVar("T")
_NEVER = float("-inf")  # a receiver's launch: see timeline.last_launches
_KEPT = 200_000  # operations of all workers' timelines
_STACK = 4 * 2**20  # bytes of a worker's stack: address space, of which only what is used becomes memory


class _AbandonedError(BaseException):
    """Another worker failed: this one's thread unwinds."""


@dataclass
class _Message:
    arrival: float
    tensor: Tensor
    number: int


@dataclass
class _Meeting:
    """One collective call of a group, while its members arrive."""

    given: dict[int, Any] = field(default_factory=dict)  # by rank in the group
    launch: float = _NEVER  # of the last one
    result: Any = None
    done: float | None = None  # when it is over, once all have come
    waiting: list["_Worker"] = field(default_factory=list)
    left: int = 0  # members that have picked it up


class _Worker:
    """A thread and its clock. Only the worker itself, or whoever wakes it, moves the clock on."""

    def __init__(self, rank: int) -> None:
        self.rank, self.clock = rank, 0.0
        self.baton = threading.Lock()  # held by nobody only while this worker may run
        self.baton.acquire()
        self.ticket = 0  # the valid one of its entries among the runnable
        self.waits = ""  # in words, while it is blocked
        self.over = False
        self.inbox: dict[tuple[str, int], deque[_Message]] = defaultdict(deque)  # by (group, source)
        self.arrivals: dict[str, list[tuple[float, int, int]]] = {}  # group -> heap of (arrival, source, number)
        self.wants: str | tuple[str, int] | None = (
            None  # a group (recv_any), or a group and a source, when in a receive
        )
        self.expected = float("inf")  # when the message that it waits for arrives
        self.generator: Tensor | None = None  # torch's default generator, while another worker runs
        self.ledger = Ledger()


class Cluster:
    """The workers of one run, in this process."""

    def __init__(self, size: int, network: Network) -> None:
        self.size, self.fabric = size, Fabric(network, size)
        self._workers = [_Worker(rank) for rank in range(size)]
        self._ready: list[tuple[float, int, int]] = []  # (clock, rank, ticket)
        self._failure: BaseException | None = None
        self._finished = threading.Event()
        self._log = hashlib.blake2b(digest_size=16)
        self.stop = False  # somebody asked to save and stop
        self.posted: dict[str, str] = {}
        self.readers: defaultdict[str, list[_Worker]] = defaultdict(list)
        self.meetings: dict[tuple[str, int], _Meeting] = {}
        self.mutexes: dict[str, _Mutex] = {}

    def run(self, function: Callable[["VirtualComm"], T]) -> list[T]:
        """`function` on every worker; returns what each returned, by rank.

        Raises what the first worker to fail raised, or `HangError` on a deadlock; no thread is left then.
        """
        results: list[Any] = [None] * self.size
        before = threading.stack_size(_STACK)
        try:
            threads = [
                threading.Thread(target=self._life, args=(worker, function, results), name=f"worker-{worker.rank}")
                for worker in self._workers
            ]
            for thread in threads:
                thread.start()
        finally:
            threading.stack_size(before)
        generator = torch.default_generator.get_state()
        for worker in self._workers:
            worker.generator = generator
            self._make_ready(worker)
        self._start_next()
        while not self._finished.wait(0.2):  # in slices, so that signals are handled
            pass
        for thread in threads:
            thread.join()
        torch.default_generator.set_state(generator)
        if self._failure is not None:
            raise self._failure
        return results

    def request_stop(self) -> None:
        """Ask all workers to save and stop; from any thread, a signal's handler too."""
        self.stop = True

    def digest(self) -> str:
        """A hash of all events so far: who did what with whom, when, and how many bytes."""
        return self._log.hexdigest()

    def log(self, worker: _Worker, event: str, peer: int, size: int) -> None:
        self._log.update(struct.pack("<dq8sqq", worker.clock, worker.rank, event.encode()[:8], peer, size))

    # -- threads

    def _life(self, worker: _Worker, function: Callable[["VirtualComm"], Any], results: list[Any]) -> None:
        worker.baton.acquire()
        try:
            if self._failure is None:
                self._take_up(worker)
                everyone = list(range(self.size))
                board = VirtualBoard(self, worker)
                timeline = Timeline(max(_KEPT // self.size, 100))
                comm = VirtualComm(self, worker, everyone, "world", board, worker.ledger, timeline)
                results[worker.rank] = function(comm)
        except _AbandonedError:
            pass
        except BaseException as error:
            error.virtual_rank = worker.rank  # pyright: ignore[reportAttributeAccessIssue]
            self._fail(error)
        worker.over = True
        self._start_next()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    def _make_ready(self, worker: _Worker, clock: float | None = None) -> None:
        """`worker` may run from `clock` on (its own where None); what was said before is void."""
        worker.ticket += 1
        heapq.heappush(self._ready, (worker.clock if clock is None else clock, worker.rank, worker.ticket))

    def _earliest(self) -> tuple[float, _Worker] | None:
        while self._ready:
            clock, rank, ticket = self._ready[0]
            worker = self._workers[rank]
            if ticket == worker.ticket and not worker.over:
                return clock, worker
            heapq.heappop(self._ready)
        return None

    def _pop(self) -> _Worker | None:
        earliest = self._earliest()
        if earliest is None:
            return None
        heapq.heappop(self._ready)
        clock, worker = earliest
        worker.clock = max(worker.clock, clock)
        worker.ticket += 1
        return worker

    def _start_next(self) -> None:
        """The running thread ends: hand over to the next one, or to those that a failure leaves to unwind."""
        following = self._pop() if self._failure is None else None
        if following is None:
            unfinished = [worker for worker in self._workers if not worker.over]
            if not unfinished:
                self._finished.set()
                return
            if self._failure is None:
                self._fail(self._deadlock())
            following = unfinished[0]
        following.baton.release()

    def _deadlock(self) -> HangError:
        stuck = [worker for worker in self._workers if not worker.over and worker.waits]
        named = "; ".join(f"worker {worker.rank} {worker.waits}" for worker in stuck[:8])
        more = f"; and {len(stuck) - 8} others" if len(stuck) > 8 else ""
        return HangError(f"deadlock at virtual second {max(w.clock for w in stuck):.6g}: {named}{more}")

    def _take_up(self, worker: _Worker) -> None:
        if self._failure is not None:
            raise _AbandonedError
        assert worker.generator is not None
        torch.default_generator.set_state(worker.generator)

    def _leave_to(self, worker: _Worker, following: _Worker) -> None:
        """Switch threads; returns when `worker` is to run again."""
        worker.generator = torch.default_generator.get_state()
        following.baton.release()
        worker.baton.acquire()
        self._take_up(worker)

    def turn(self, worker: _Worker) -> None:
        """Let the earlier ones run first."""
        earliest = self._earliest()
        if earliest is not None and (earliest[0], earliest[1].rank) < (worker.clock, worker.rank):
            self._make_ready(worker)
            following = self._pop()
            assert following is not None
            self._leave_to(worker, following)

    def block(self, worker: _Worker, waits: str) -> None:
        """Until somebody wakes it."""
        worker.waits = waits
        following = self._pop()
        if following is None:
            self._fail(self._deadlock())
            raise _AbandonedError
        if following is not worker:
            self._leave_to(worker, following)
        worker.waits = ""

    def wake(self, worker: _Worker, clock: float) -> None:
        """`worker` may run again, from `clock` on or later."""
        self._make_ready(worker, max(worker.clock, clock))

    def await_message(self, worker: _Worker, arrival: float | None, waits: str) -> None:
        """Until `arrival`, or an earlier message's, which may still be sent before that; None: none is on its way."""
        worker.expected = float("inf")
        if arrival is not None:
            self.expect(worker, arrival)
        self.block(worker, waits)

    def expect(self, worker: _Worker, arrival: float) -> None:
        """A message that `worker` waits for arrives then."""
        if arrival < worker.expected:
            worker.expected = arrival
            self._make_ready(worker, worker.clock if worker.ledger.is_aside else max(worker.clock, arrival))


class _Mutex:
    def __init__(self) -> None:
        self.holder: _Worker | None = None
        self.queue: deque[_Worker] = deque()


class VirtualBoard(Board):
    """A board in this process's memory; reading and posting take no time."""

    def __init__(self, cluster: Cluster, worker: _Worker) -> None:
        self.rank, self._cluster, self._worker = worker.rank, cluster, worker

    def post(self, key: str, value: str) -> None:
        self._cluster.posted[key] = value
        for reader in self._cluster.readers.pop(key, []):
            self._cluster.wake(reader, reader.clock)

    def read(self, key: str, writer: int) -> str:
        while key not in self._cluster.posted:
            self._cluster.readers[key].append(self._worker)
            self._cluster.block(self._worker, f"waits for '{key}' from worker {writer}")
        return self._cluster.posted[key]

    def stop_requested(self) -> bool:
        return self._cluster.stop

    def request_stop(self) -> None:
        self._cluster.request_stop()

    def doing(self, what: str) -> None:
        pass


class _Sent(Work):
    """A message that left: its sender may go on when its link is free again."""

    def __init__(self, comm: "VirtualComm", what: str, channel: str, number: int, launch: float, free: float) -> None:
        self._comm, self._what = comm, what
        self._channel, self._number, self._launch, self._free = channel, number, launch, free

    def wait(self) -> None:
        self._comm.pass_until(self._free, self._channel, self._number, self._launch)


class _Receiving(Work):
    """A receive, which takes place when it is waited for."""

    def __init__(self, comm: "VirtualComm", tensor: Tensor, src: int) -> None:
        self._comm, self._tensor, self._src = comm, tensor, src
        self._done = False

    def wait(self) -> None:
        if not self._done:
            self._done = True
            self._comm.receive(self._tensor, self._src)


class _Collective(Work):
    def __init__(
        self, comm: "VirtualComm", meeting: _Meeting, key: tuple[str, int], tensor: Tensor, channel: str, number: int
    ) -> None:
        self._comm, self._meeting, self._key, self._tensor = comm, meeting, key, tensor
        self._channel, self._number, self._launch = channel, number, comm.now()
        self._done = False

    def wait(self) -> None:
        if not self._done:
            self._done = True
            result = self._comm.await_meeting(self._meeting, self._key, self._channel, self._number, self._launch)
            self._tensor.detach().copy_(result)


class VirtualComm(Comm):
    """A worker thread's end of a group. `ranks` are the group's members, numbered in the whole run."""

    def __init__(
        self,
        cluster: Cluster,
        worker: _Worker,
        ranks: list[int],
        name: str,
        board: VirtualBoard,
        ledger: Ledger,
        timeline: Timeline,
    ) -> None:
        self._cluster, self._worker, self.ranks = cluster, worker, ranks
        self.rank, self.size, self.name = ranks.index(worker.rank), len(ranks), name
        self.board, self._board, self.ledger, self.timeline = board, board, ledger, timeline
        self._meetings = 0

    # -- collectives

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Work:
        self.ledger.count("all_reduce", wire.all_reduce_bytes(nbytes(tensor), self.size))

        def reduce(given: list[Tensor]) -> Tensor:
            total = given[0].clone()
            for other in given[1:]:
                _REDUCE[op](total, other)
            return total

        return self._collective("all_reduce", tensor, reduce, self._cluster.fabric.all_reduce)

    def broadcast(self, tensor: Tensor, src: int) -> Work:
        distance = (self.rank - src) % self.size
        self.ledger.count("broadcast", wire.broadcast_bytes(nbytes(tensor), self.size, distance))
        return self._collective("broadcast", tensor, lambda given: given[src].clone(), self._cluster.fabric.broadcast)

    def all_gather(self, tensor: Tensor) -> Tensor:
        self.ledger.count("all_gather", wire.all_gather_bytes(nbytes(tensor), self.size))
        gathered = tensor.new_empty(self.size, *tensor.shape)
        self._collective("all_gather", tensor, torch.stack, self._cluster.fabric.all_gather, into=gathered).wait()
        return gathered

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        self.ledger.count("reduce_scatter", wire.reduce_scatter_bytes(nbytes(tensor), self.size))
        received = self._exchange("reduce_scatter", tensor)
        return received.view(self.size, -1, *tensor.shape[1:]).sum(0)

    def all_to_all(self, tensor: Tensor) -> Tensor:
        self.ledger.count("all_to_all", wire.all_to_all_bytes(nbytes(tensor), self.size))
        return self._exchange("all_to_all", tensor)

    def _exchange(self, primitive: str, tensor: Tensor) -> Tensor:
        everything = tensor.new_empty(self.size, *tensor.shape)
        self._collective(primitive, tensor, torch.stack, self._cluster.fabric.scatter, into=everything).wait()
        each = len(tensor) // self.size
        return everything[:, self.rank * each : (self.rank + 1) * each].flatten(0, 1)

    def barrier(self) -> None:
        channel = f"{self.name}#barrier"
        number, launch = self.timeline.number(channel), self.now()
        meeting, key = self._join(
            "barrier", None, lambda given: None, lambda r, _, at: self._cluster.fabric.barrier(r, at)
        )
        self.await_meeting(meeting, key, channel, number, launch)

    def _collective(
        self,
        primitive: str,
        tensor: Tensor,
        combine: Callable[[list[Tensor]], Tensor],
        takes: Callable[[list[int], int, float], float],
        into: Tensor | None = None,
    ) -> Work:
        channel = f"{self.name}#"
        number = self.timeline.number(channel)
        meeting, key = self._join(primitive, tensor.detach(), combine, takes)
        return _Collective(self, meeting, key, tensor if into is None else into, channel, number)

    def _join(
        self,
        what: str,
        given: Any,
        combine: Callable[[list[Any]], Any],
        takes: Callable[[list[int], int, float], float],
    ) -> tuple[_Meeting, tuple[str, int]]:
        """Come to this group's next meeting; whoever comes last makes the result."""
        self._meetings += 1
        key = (self.name, self._meetings)
        meeting = self._cluster.meetings.setdefault(key, _Meeting())
        worker = self._worker
        size = nbytes(given) if isinstance(given, Tensor) else 0
        self._cluster.log(worker, what, -1, size)
        meeting.given[self.rank] = given
        meeting.launch = max(meeting.launch, worker.clock)
        if len(meeting.given) == self.size:
            meeting.result = combine([meeting.given[rank] for rank in range(self.size)])
            meeting.given.clear()
            aside = self.ledger.is_aside or self.size == 1
            meeting.done = meeting.launch if aside else takes(self.ranks, size, meeting.launch)
            for other in meeting.waiting:
                self._cluster.wake(other, meeting.done if not aside else other.clock)
            meeting.waiting.clear()
        return meeting, key

    def await_meeting(self, meeting: _Meeting, key: tuple[str, int], channel: str, number: int, launch: float) -> Any:
        start = self.now()
        if meeting.done is None:
            meeting.waiting.append(self._worker)
            missing = [self.ranks[rank] for rank in range(self.size) if rank not in meeting.given]
            some = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            self._cluster.block(self._worker, f"waits in a collective of {self.name} for workers {some}")
        assert meeting.done is not None
        self.pass_until(meeting.done, channel, number, launch, start)
        result = meeting.result
        meeting.left += 1
        if meeting.left == self.size:
            del self._cluster.meetings[key]
        return result

    def pass_until(self, clock: float, channel: str, number: int, launch: float, start: float | None = None) -> None:
        """Blocked until `clock`, on an operation of the timeline."""
        worker = self._worker
        start = worker.clock if start is None else start
        if not self.ledger.is_aside:
            worker.clock = max(worker.clock, clock)
            self._cluster.turn(worker)
        self.timeline.add(channel, number, launch, start, worker.clock)

    # -- point to point

    def send(self, tensor: Tensor, dst: int) -> None:
        self.isend(tensor, dst).wait()

    def recv(self, tensor: Tensor, src: int) -> None:
        self.receive(tensor, src)

    def isend(self, tensor: Tensor, dst: int) -> Work:
        assert tensor.is_contiguous(), "a message is a contiguous tensor"
        self.ledger.count("send", nbytes(tensor))
        cluster, worker, to = self._cluster, self._worker, self.ranks[dst]
        channel, launch = self._channel(self.rank, dst), worker.clock
        number = self.timeline.number(channel)
        receiver, source = cluster._workers[to], (self.name, self.rank)
        if self.ledger.is_aside:
            before = receiver.inbox[source]
            free, arrival = launch, max(launch, before[-1].arrival) if before else launch  # it overtakes none
        else:
            free, arrival = cluster.fabric.send(worker.rank, to, nbytes(tensor), launch)
        cluster.log(worker, "send", to, nbytes(tensor))
        receiver.inbox[source].append(_Message(arrival, tensor.detach().clone(), number))
        if self.name in receiver.arrivals:
            heapq.heappush(receiver.arrivals[self.name], (arrival, self.rank, number))
        if receiver.wants is not None and receiver.wants in (source, self.name):
            cluster.expect(receiver, arrival)
        return _Sent(self, f"sends to worker {to}", channel, number, launch, free)

    def irecv(self, tensor: Tensor, src: int) -> Work:
        return _Receiving(self, tensor, src)

    def recv_any(self, tensor: Tensor) -> int:
        self._order_arrivals()
        return self._receive(tensor, self.name, self._first_of_all, "from anyone")

    def try_recv_any(self, tensor: Tensor) -> int | None:
        self._order_arrivals()
        first = self._first_of_all()
        if first is None or not (first[0] <= self._worker.clock or self.ledger.is_aside):
            return None
        return self.recv_any(tensor)

    def _order_arrivals(self) -> None:
        if self.name not in self._worker.arrivals:
            waiting = [(src, queue) for (group, src), queue in self._worker.inbox.items() if group == self.name]
            heap = [(message.arrival, src, message.number) for src, queue in waiting for message in queue]
            heapq.heapify(heap)
            self._worker.arrivals[self.name] = heap

    def receive(self, tensor: Tensor, src: int) -> None:
        self._receive(tensor, (self.name, src), lambda: self._first_of(src), f"from worker {self.ranks[src]}")

    def _first_of(self, src: int) -> tuple[float, int] | None:
        queue = self._worker.inbox.get((self.name, src))
        return (queue[0].arrival, src) if queue else None

    def _first_of_all(self) -> tuple[float, int] | None:
        heap = self._worker.arrivals[self.name]
        while heap:
            arrival, src, number = heap[0]
            queue = self._worker.inbox.get((self.name, src))
            if queue and queue[0].number == number:
                return arrival, src
            heapq.heappop(heap)  # received already, by a receive from its source
        return None

    def _receive(
        self,
        tensor: Tensor,
        wants: str | tuple[str, int],
        first_of: Callable[[], tuple[float, int] | None],
        whom: str,
    ) -> int:
        worker, cluster = self._worker, self._cluster
        start = worker.clock
        while True:
            first = first_of()
            if first is not None and (first[0] <= worker.clock or self.ledger.is_aside):
                break
            worker.wants = wants
            cluster.await_message(worker, None if first is None else first[0], f"waits in recv {whom}")
            worker.wants = None
        src = first[1]
        queue = worker.inbox[self.name, src]
        message = queue.popleft()
        if not queue:
            del worker.inbox[self.name, src]
        assert message.tensor.numel() == tensor.numel() and message.tensor.dtype == tensor.dtype, (
            f"worker {worker.rank} expected {tuple(tensor.shape)} {tensor.dtype} and worker {self.ranks[src]} sent "
            f"{tuple(message.tensor.shape)} {message.tensor.dtype}"
        )
        tensor.detach().copy_(message.tensor.view_as(tensor))
        cluster.log(worker, "recv", self.ranks[src], nbytes(tensor))
        self.timeline.add(self._channel(src, self.rank), message.number, _NEVER, start, worker.clock)
        return src

    def _channel(self, src: int, dst: int) -> str:
        return f"{self.name}:{src}>{dst}"

    # -- the rest

    def shared(self, tensor: Tensor) -> Tensor:
        meeting, key = self._join(
            "shared", tensor, lambda given: given[0].detach().cpu().contiguous().clone(), _at_once
        )
        memory: Tensor = self.await_meeting(meeting, key, f"{self.name}#shared", 0, self.now())
        # the same bytes with a version counter of its own: autograd must not see the others' writes, as on processes
        return torch.from_numpy(memory.view(torch.uint8).numpy()).view(memory.dtype).view(memory.shape)

    def mutex(self) -> AbstractContextManager[None]:
        meeting, key = self._join("mutex", None, lambda given: _Mutex(), _at_once)
        lock: _Mutex = self.await_meeting(meeting, key, f"{self.name}#mutex", 0, self.now())
        return _Held(self, lock)

    @contextmanager
    def hold(self, lock: _Mutex) -> Iterator[None]:
        worker, cluster = self._worker, self._cluster
        if lock.holder is None:
            lock.holder = worker
        else:
            lock.queue.append(worker)
            cluster.block(worker, f"waits for a mutex of {self.name} that worker {lock.holder.rank} holds")
        try:
            yield
        finally:
            lock.holder = lock.queue.popleft() if lock.queue else None
            if lock.holder is not None:
                cluster.wake(lock.holder, worker.clock)

    def split(self, color: int | None) -> "VirtualComm | None":
        meeting, key = self._join("split", color, list, _at_once)
        colors: list[int | None] = self.await_meeting(meeting, key, f"{self.name}#split", 0, self.now())
        if color is None:
            return None
        ranks = [rank for rank, its in zip(self.ranks, colors, strict=True) if its == color]
        name = f"{self.name}/{key[1]}.{color}"
        return VirtualComm(self._cluster, self._worker, ranks, name, self._board, self.ledger, self.timeline)

    def lost(self) -> frozenset[int]:
        return frozenset()  # a worker that fails ends the run

    def now(self) -> float:
        return self._worker.clock

    def elapse(self, seconds: float) -> None:
        if seconds > 0 and not self.ledger.is_aside:
            self._worker.clock += seconds
            self._cluster.turn(self._worker)


class _Held(AbstractContextManager[None]):
    """A mutex of one worker, to be entered any number of times."""

    def __init__(self, comm: VirtualComm, lock: _Mutex) -> None:
        self._comm, self._lock = comm, lock

    def __enter__(self) -> None:
        self._context = self._comm.hold(self._lock)
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(None, None, None)


def _at_once(ranks: list[int], size: int, at: float) -> float:
    return at


_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda total, other: total.add_(other),
    "max": lambda total, other: torch.maximum(total, other, out=total),
    "min": lambda total, other: torch.minimum(total, other, out=total),
}
