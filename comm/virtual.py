"""The virtual cluster: workers in one process, one running at a time, ordered by a virtual clock.

The gradients are real, the network and the compute times are modelled. Time that passes (an elapsed second, a message,
a collective) moves the worker's own clock on. Before a worker does something that others can see, the earlier ones run
first: those with a lesser (clock, rank). Launching a message or a collective is put off until then while the worker
goes on. Once memory is shared, all that a worker computes can be seen, so that the earlier ones run whenever time
passes. When a message has left depends on what others send meanwhile, so it is an event of the network, between the
workers' turns. So what a worker reads and writes, shared memory included, is in the order of the clock, and the same
seed gives the same bits, the same clock and the same order of events every time.

What happens aside from training (`Ledger.aside`: set-up, evaluation, checkpoints) takes no time and holds no link.

When no worker can run, each waits for another: a deadlock, which is found at once and named.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import ledger as wire
from .base import Comm, ReduceOp, Work, check_contiguous, check_dense, nbytes
from .calls import words
from .carriers import DECLARE, Carrier, Threads
from .errors import FabricError, MessageError
from .ledger import Ledger
from .network import Network, Over
from .timeline import Operation, Timeline
from .virtual_state import (
    ClusterState,
    GroupMembers,
    Stream,
    VirtualKeyValues,
    VirtualMeeting,
    VirtualMessage,
    VirtualMutex,
    VirtualWorker,
    Watch,
)
from .virtual_works import CollectiveWork, HeldMutex, Receiving, SentMessage, write

T = TypeVar("T")
Takes = Callable[[str, Sequence[int], int, float, Over], None]  # (group, members, bytes of one of them, from, then)
_KEPT = 200_000  # operations of all workers' timelines


class SimulatedCluster(ClusterState):
    """The workers of one run, in this process."""

    def __init__(
        self,
        size: int,
        network: Network,
        memory: float = inf,
        watch: Watch | None = None,
        carrier: type[Carrier] = Threads,
    ) -> None:
        """`memory`: bytes a second that a worker reads and writes. `watch` is shown each message as it is sent.
        `carrier`: of the workers; `Greenlets` is faster, where none waits for another within a pass of autograd.
        """
        super().__init__(size, network, memory, watch)
        self.carrier = carrier

    def run(self, function: Callable[["VirtualComm"], T]) -> list[T]:
        """`function` on every worker; returns what each returned, by rank.

        Raises what the first worker to fail raised, or `HangError` on a deadlock; no worker is left then.
        """
        results: list[Any] = [None] * self.size
        # a new thread begins with the default, one a core, and so gives other last bits
        threads = torch.get_num_threads()

        def life(worker: VirtualWorker) -> None:
            torch.set_num_threads(threads)
            results[worker.rank] = function(self._comm(worker))

        self.turns.run(life, self.carrier(self.size))
        return results

    @property
    def failed_rank(self) -> int | None:
        """The worker that raised what `run` did; None on a deadlock."""
        return self.turns.failed_rank

    def _comm(self, worker: VirtualWorker) -> "VirtualComm":
        timeline = Timeline(max(_KEPT // self.size, 100))
        key_values = VirtualKeyValues(self, worker)
        self.boards.append(key_values)
        return VirtualComm(self, worker, self.everyone, "world", key_values, worker.ledger, timeline)


class VirtualComm(Comm):
    """A worker's end of a group. `ranks` are those of its members, numbered in the whole run."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        worker: VirtualWorker,
        members: GroupMembers,
        name: str,
        key_values: VirtualKeyValues,
        ledger: Ledger,
        timeline: Timeline,
    ) -> None:
        self._cluster, self._worker, self._members, self.ranks = cluster, worker, members, members.ranks
        self.rank, self.size, self.name = members.places[worker.rank], len(members.ranks), name
        self.key_values, self._key_values, self.ledger, self.timeline = key_values, key_values, ledger, timeline
        self._meetings = 0

    @property
    def hosts(self) -> tuple[int, ...]:
        return self._members.hosts

    def digest(self) -> str:
        """See `SimulatedCluster.digest`."""
        return self._cluster.digest()

    # -- collectives

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Work:
        check_dense(tensor)
        self.ledger.count("all_reduce", wire.all_reduce_bytes(nbytes(tensor), self.size))

        reduce = partial(_reduced, op)
        meeting = self._meet("all_reduce", tensor, reduce, self._cluster.fabric.all_reduce, op)
        return CollectiveWork(self, meeting, tensor)

    def sum_in_memory(self, tensor: Tensor) -> Work:
        check_dense(tensor)
        if max(self.hosts) > 0:
            raise FabricError(f"the workers of {self.name} cannot sum in shared memory: they are on several hosts")
        self.ledger.count("shared_memory", wire.all_reduce_bytes(nbytes(tensor), self.size))
        meeting = self._meet("shared_memory", tensor, partial(_reduced, "sum"), self._cluster.fabric.sum_in_memory)
        return CollectiveWork(self, meeting, tensor)

    def broadcast(self, tensor: Tensor, src: int) -> Work:
        check_dense(tensor)
        distance = (self.rank - src) % self.size
        self.ledger.count("broadcast", wire.broadcast_bytes(nbytes(tensor), self.size, distance))
        takes = self._cluster.fabric.broadcast
        meeting = self._meet("broadcast", tensor, lambda given: given[src].clone(), takes, f"from {src}")
        return CollectiveWork(self, meeting, tensor)

    def iall_gather(self, tensor: Tensor) -> Work:
        check_contiguous(tensor)
        mine = tensor[self.rank]
        self.ledger.count("all_gather", wire.all_gather_bytes(nbytes(mine), self.size))
        meeting = self._meet("all_gather", mine, torch.stack, self._cluster.fabric.all_gather)
        return CollectiveWork(self, meeting, tensor)

    def ireduce_scatter(self, tensor: Tensor, out: Tensor, scratch: Tensor) -> Work:
        check_contiguous(tensor)
        self.ledger.count("reduce_scatter", wire.reduce_scatter_bytes(nbytes(tensor), self.size))
        meeting = self._scatter("reduce_scatter", tensor)
        return CollectiveWork(self, meeting, out, lambda rows: self._own(rows).sum(0, dtype=out.dtype))

    def all_to_all(self, tensor: Tensor) -> Tensor:
        self.ledger.count("all_to_all", wire.all_to_all_bytes(nbytes(tensor), self.size))
        return self._own(self.attend(self._scatter("all_to_all", tensor))).flatten(0, 1).clone()

    def _scatter(self, primitive: str, tensor: Tensor) -> VirtualMeeting:
        """[size * k, ...] on each worker -> [size, size * k, ...]."""
        rest = len(tensor) % self.size
        assert rest == 0, f"{len(tensor)} rows cannot be dealt to {self.size} workers"
        return self._meet(primitive, tensor, torch.stack, self._cluster.fabric.scatter)

    def _own(self, everything: Tensor) -> Tensor:
        """[size, size * k, ...] -> [size, k, ...]: this worker's chunk of each."""
        each = everything.shape[1] // self.size
        return everything[:, self.rank * each : (self.rank + 1) * each]

    def barrier(self) -> None:
        self.attend(self._meet("barrier", None, lambda given: None, self._cluster.fabric.barrier))

    def _meet(
        self,
        what: str,
        given: Any,
        combine: Callable[[list[Any]], Any],
        takes: Takes | None = None,
        how: str = "",
    ) -> VirtualMeeting:
        """Come to this group's next meeting, when it is this worker's turn; whoever comes last makes the result.

        `takes`: None for no time.
        """
        self._meetings += 1
        key, cluster, worker = (self.name, self._meetings), self._cluster, self._worker
        launch, is_aside, call, size = worker.clock, self.ledger.is_aside, (what, how, None, None), 0
        if isinstance(given, Tensor):
            given, size = given.detach(), nbytes(given)
            call = (what, how, given.numel(), given.dtype)
        meeting = cluster.meetings.get(key)
        if meeting is None:
            meeting = cluster.meetings[key] = VirtualMeeting(self._meetings, what)

        def come() -> None:
            meeting.call = meeting.call or call
            if call != meeting.call:
                others = ", ".join(str(self.ranks[rank]) for rank in sorted(meeting.given))
                raise MessageError(
                    f"worker {worker.rank} in {what} of {self.name}: it calls {words(call)} where others ({others}) "
                    f"call {words(meeting.call)}"
                )
            if not is_aside:
                cluster.log(launch, worker, what, -1, size)
            meeting.given[self.rank] = given
            meeting.launch = max(meeting.launch, launch)
            if len(meeting.given) == self.size:
                meeting.result = combine([meeting.given[rank] for rank in range(self.size)])
                meeting.given.clear()
                if takes is not None and self.size > 1 and not is_aside:
                    takes(self.name, self.ranks, size, meeting.launch, lambda done: self._part(meeting, done))
                else:
                    self._part(meeting, meeting.launch)

        cluster.turns.put_off(worker, come)
        return meeting

    def _part(self, meeting: VirtualMeeting, done: float) -> None:
        """The meeting is over at `done`."""
        meeting.done = done
        for other in meeting.sleepers:
            self._cluster.turns.wake(other, other.clock if other.ledger.is_aside else done)

    def launched(self, meeting: VirtualMeeting) -> Operation:
        return self.timeline.launched(f"{self.name}#", meeting.what, self._worker.clock, meeting.number)

    def attend(self, meeting: VirtualMeeting, operation: Operation | None = None) -> Any:
        """The meeting's result, once all have come and it is over. It is everyone's: not to be written to.

        `operation`: as it was launched; None for right now.
        """
        worker, start, operation = self._worker, self._worker.clock, operation or self.launched(meeting)
        self._cluster.turns.catch_up(worker)
        if meeting.done is None:
            meeting.sleepers.append(worker)
            self._cluster.turns.sleep(worker, lambda: self._whom(meeting))
            assert meeting.done is not None
        self.pass_until(meeting.done)
        self.timeline.add(operation, start, worker.clock, meeting.launch)
        meeting.left += 1
        if meeting.left == self.size:
            del self._cluster.meetings[self.name, meeting.number]
        return meeting.result

    def _whom(self, meeting: VirtualMeeting) -> str:
        missing = self._some([rank for rank in range(self.size) if rank not in meeting.given])
        return f"waits in {meeting.what} of {self.name} for workers {missing}"

    def _waits_for_any(self) -> str:
        others = self._some([rank for rank in range(self.size) if rank != self.rank])
        return f"waits in recv_any from workers {others}"

    def _some(self, ranks: list[int]) -> str:
        return ", ".join(str(self.ranks[rank]) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")

    def pass_until(self, clock: float) -> None:
        """Blocked until `clock`, if that is not past; aside no time passes."""
        worker = self._worker
        self._cluster.turns.move_on(worker, worker.clock if self.ledger.is_aside else clock)
        if self._cluster.shares_memory:
            self._cluster.turns.catch_up(worker)

    # -- point to point

    def send(self, tensor: Tensor, dst: int) -> None:
        self.isend(tensor, dst).wait()

    def recv(self, tensor: Tensor, src: int) -> None:
        self.irecv(tensor, src).wait()

    def isend(self, tensor: Tensor, dst: int) -> Work:
        check_contiguous(tensor)
        receiver, size = self._cluster.workers[self._peer(dst)], tensor.nbytes
        self.ledger.count("send", size)
        cluster, worker, is_aside = self._cluster, self._worker, self.ledger.is_aside
        launch, stream = worker.clock, (self.name, self.rank)
        sending = self.timeline.launched(self._channel(self.rank, dst), "send", launch)
        sent, content = SentMessage(self, sending, dst), tensor.detach().clone()

        def arrives(left: float, arrival: float) -> None:
            sent.left = left
            if sent.sleeper is not None:
                cluster.turns.wake(sent.sleeper, left)
            self._deliver(VirtualMessage(sending.number, launch, arrival, content), stream, receiver)

        def leave() -> None:
            if cluster.watch is not None:
                cluster.watch(worker.rank, receiver.rank, sending.purpose, launch, content)
            if is_aside:
                cluster.fabric.follow(worker.rank, receiver.rank, launch, arrives)
            else:
                cluster.log(launch, worker, "send", receiver.rank, size)
                cluster.fabric.send(worker.rank, receiver.rank, size, launch, arrives)

        cluster.turns.put_off(worker, leave)
        return sent

    def see_off(self, sent: SentMessage) -> float:
        """Waits until the message has left, and returns the time; aside no time passes, and it goes on leaving."""
        worker = self._worker
        self._cluster.turns.catch_up(worker)
        if sent.left is None and not self.ledger.is_aside:
            sent.sleeper = worker
            self._cluster.turns.sleep(worker, lambda: f"waits in send to worker {self.ranks[sent.dst]}")
        self.pass_until(worker.clock if sent.left is None else sent.left)
        return worker.clock

    def _deliver(self, message: VirtualMessage, stream: Stream, receiver: VirtualWorker) -> None:
        turns = self._cluster.turns
        if posted := receiver.posted.get(stream):
            receive = posted.popleft()
            receive.message = message
            if receive.sleeper is not None:
                turns.wake(receiver, receiver.clock if receiver.ledger.is_aside else message.arrival)
            return
        queue = receiver.inbox[stream]
        if queue and queue[-1].arrival > message.arrival:  # sent aside: it overtakes none
            message.arrival = queue[-1].arrival
        queue.append(message)
        if self.name in receiver.arrivals:
            heapq.heappush(receiver.arrivals[self.name], (message.arrival, self.rank, message.number))
        if receiver.listens == self.name and message.arrival < receiver.expected:
            receiver.expected = message.arrival
            turns.wake(receiver, receiver.clock if receiver.ledger.is_aside else message.arrival)

    def irecv(self, tensor: Tensor, src: int) -> Work:
        check_contiguous(tensor)
        return self._posted(tensor, src)

    def _posted(self, tensor: Tensor, src: int) -> Receiving:
        self._peer(src)
        self._cluster.turns.catch_up(self._worker)
        receive, stream = Receiving(self, tensor, src), (self.name, src)
        if self._worker.inbox.get(stream):
            receive.message = self._worker.collect(stream)
        else:
            self._worker.posted[stream].append(receive)
        return receive

    def complete(self, receive: Receiving, tensor: Tensor, src: int) -> None:
        """Wait for the message of a posted receive."""
        start = self._worker.clock
        self._take(self._arrived(receive, src), tensor, src, start)

    def _arrived(self, receive: Receiving, src: int) -> VirtualMessage:
        self._cluster.turns.catch_up(self._worker)
        if receive.message is None:
            receive.sleeper = self._worker
            self._cluster.turns.sleep(self._worker, lambda: f"waits in recv from worker {self.ranks[src]}")
            assert receive.message is not None
        self.pass_until(receive.message.arrival)
        return receive.message

    def recv_message(self, src: int, most: int) -> Tensor:
        start = self._worker.clock
        message = self._arrived(self._posted(torch.empty(0, dtype=torch.uint8), src), src)
        if nbytes(message.tensor) > most:
            raise MessageError(
                f"worker {self._worker.rank} in recv from worker {self.ranks[src]}: worker {self.ranks[src]} sent "
                f"a message of {nbytes(message.tensor):,} bytes where at most {most:,} can come"
            )
        if message.tensor.dtype != torch.uint8:
            raise MessageError(
                f"worker {self._worker.rank} in recv from worker {self.ranks[src]}: worker {self.ranks[src]} sent "
                f"{_bytes(message.tensor)} where {nbytes(message.tensor):,} bytes of uint8 are due"
            )
        self._note_receipt(message, src, start)
        return message.tensor

    def recv_any(self, tensor: Tensor) -> int:
        check_contiguous(tensor)
        worker, turns, start = self._worker, self._cluster.turns, self._worker.clock
        turns.catch_up(worker)
        while (first := self._first()) is None or not self._has_arrived(first[0]):
            # one that is sent meanwhile may arrive before it
            worker.listens, worker.expected = self.name, inf
            if first is not None:
                worker.expected = first[0]
                turns.wake(worker, first[0])
            turns.sleep(worker, self._waits_for_any)
            worker.listens = None
        src = first[1]
        self._take(worker.collect((self.name, src)), tensor, src, start)
        return src

    def try_recv_any(self, tensor: Tensor) -> int | None:
        self._cluster.turns.catch_up(self._worker)
        first = self._first()
        return self.recv_any(tensor) if first is not None and self._has_arrived(first[0]) else None

    def _has_arrived(self, arrival: float) -> bool:
        return arrival <= self._worker.clock or self.ledger.is_aside

    def _first(self) -> tuple[float, int] | None:
        """(arrival, source) of the message of this group that arrives first, of those in the inbox."""
        worker = self._worker
        heap = worker.arrivals.get(self.name)
        if heap is None:
            waiting = [(src, queue) for (group, src), queue in worker.inbox.items() if group == self.name]
            heap = [(message.arrival, src, message.number) for src, queue in waiting for message in queue]
            heapq.heapify(heap)
            worker.arrivals[self.name] = heap
        while heap:
            arrival, src, number = heap[0]
            queue = worker.inbox.get((self.name, src))
            if queue and queue[0].number == number:
                return arrival, src
            heapq.heappop(heap)  # received already, by a receive from its source
        return None

    def _take(self, message: VirtualMessage, tensor: Tensor, src: int, start: float) -> None:
        worker, sent, source = self._worker, message.tensor, self.ranks[src]
        if sent.nbytes != tensor.nbytes or sent.dtype != tensor.dtype:
            raise MessageError(
                f"worker {worker.rank} in recv from worker {source}: worker {source} sent {_bytes(sent)} where "
                f"{_bytes(tensor)} are due"
            )
        write(tensor, sent if sent.shape == tensor.shape else sent.view_as(tensor))
        self._note_receipt(message, src, start)

    def _note_receipt(self, message: VirtualMessage, src: int, start: float) -> None:
        cluster, worker = self._cluster, self._worker
        if not self.ledger.is_aside:
            event = partial(cluster.log, worker.clock, worker, "recv", self.ranks[src], message.tensor.nbytes)
            cluster.turns.put_off(worker, event)
        channel = self._channel(src, self.rank)
        self.timeline.add_at_once(channel, "recv", message.number, message.launch, start, worker.clock)

    def _peer(self, rank: int) -> int:
        """A worker of this group, numbered in the whole run."""
        assert rank != self.rank, f"worker {rank} of {self.name} talks to itself"
        return self.ranks[rank]

    def _channel(self, src: int, dst: int) -> str:
        return f"{self.name}:{src}>{dst}"

    # -- the rest

    def shared(self, tensor: Tensor) -> Tensor:
        fabric = self._cluster.fabric  # of one worker a host, whoever shares memory is taken for one host's cores
        if fabric.network.workers_per_host > 1 and max(self.hosts) > 0:
            raise FabricError(f"shared memory cannot be had: the workers of {self.name} are on several hosts")
        if not self._cluster.carrier.within_passes:  # others' writes happen whenever time passes
            raise FabricError(f"worker {self._worker.rank} shares memory, and so waits within passes, {DECLARE}")
        meeting = self._meet("shared", tensor, lambda given: given[0].cpu().contiguous().clone())
        self._cluster.shares_memory = True
        # .data: a version counter of its own; autograd must not see the others' writes, as on processes
        return self.attend(meeting).data

    def mutex(self) -> AbstractContextManager[None]:
        name = f"{self.name}#mutex{self._meetings}"
        return HeldMutex(self, self.attend(self._meet("mutex", None, lambda given: VirtualMutex(name))))

    def acquire(self, lock: VirtualMutex) -> None:
        worker, start = self._worker, self._worker.clock
        self._cluster.turns.catch_up(worker)
        if lock.holder is None:
            lock.holder = worker
        else:
            lock.queue.append(worker)
            self._cluster.turns.sleep(
                worker, lambda: f"waits for a mutex of {self.name} that {_name(lock.holder)} holds"
            )
        lock.taken += 1
        if worker.clock > start:
            self.timeline.add_at_once(lock.channel, "mutex", lock.taken, worker.clock, start, worker.clock)

    def release(self, lock: VirtualMutex) -> None:
        """The next one has it, in the order in which they came."""
        self._cluster.turns.catch_up(self._worker)
        lock.holder = lock.queue.popleft() if lock.queue else None
        if lock.holder is not None:
            self._cluster.turns.wake(lock.holder, self._worker.clock)

    def split(self, color: int | None, axis: str | None = None) -> "VirtualComm | None":
        groups: dict[int, GroupMembers] = self.attend(self._meet("split", color, self._grouped))
        if color is None:
            return None
        name = f"{self.name}/{self._meetings}.{color}"
        ledger = self.ledger if axis is None else self.ledger.along(axis)
        return VirtualComm(self._cluster, self._worker, groups[color], name, self._key_values, ledger, self.timeline)

    def _grouped(self, colors: Sequence[int | None]) -> dict[int, GroupMembers]:
        """The members of each color's group. `colors`: by rank in this one."""
        ranks: defaultdict[int, list[int]] = defaultdict(list)
        for rank, color in zip(self.ranks, colors, strict=True):
            if color is not None:
                ranks[color].append(rank)
        return {color: GroupMembers(its, self._cluster.fabric) for color, its in ranks.items()}

    def lost(self) -> frozenset[int]:
        return frozenset()  # a worker that fails ends the run

    def now(self) -> float:
        return self._worker.clock

    def touch(self, nbytes: float) -> None:
        self.elapse(nbytes / self._cluster.memory)

    def catch_up(self) -> None:
        self._cluster.turns.catch_up(self._worker)

    def elapse(self, seconds: float) -> None:
        if seconds > 0:
            self.pass_until(self._worker.clock + seconds)


def _name(worker: VirtualWorker | None) -> str:
    return "nobody" if worker is None else f"worker {worker.rank}"


def _bytes(tensor: Tensor) -> str:
    return f"{nbytes(tensor):,} bytes of {str(tensor.dtype).removeprefix('torch.')}"


def _reduced(op: ReduceOp, given: list[Tensor]) -> Tensor:
    total = given[0].clone()
    for other in given[1:]:
        _REDUCE[op](total, other)
    return total


_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda total, other: total.add_(other),
    "max": lambda total, other: torch.maximum(total, other, out=total),
    "min": lambda total, other: torch.minimum(total, other, out=total),
}
