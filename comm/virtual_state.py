"""The state that the workers of a virtual cluster share: messages, meetings, mutexes, their board, a log of events."""

import hashlib
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Protocol

from torch import Tensor

from .base import numbered
from .calls import Call
from .key_values import Look, SharedKeyValues
from .ledger import Ledger
from .native_links import links_here
from .network import ModelledNetwork, Network
from .turns import Runner, Turns

_EVENT = struct.Struct("<dq8sqq")  # the moment, worker, first letters of the event, peer, bytes
Stream = tuple[str, int]  # the messages of a group's member
Watch = Callable[[int, int, str, float, Tensor], None]  # (from, to, what for, when, what)


@dataclass(slots=True)
class VirtualMessage:
    number: int  # of its channel
    launch: float
    arrival: float
    tensor: Tensor


@dataclass
class VirtualMeeting:
    """One collective call of a group, while its members arrive."""

    number: int  # the how-manieth of the group
    what: str  # that is called
    call: Call | None = None  # what all its members must call, once one has come
    given: dict[int, Any] = field(default_factory=dict)  # by rank in the group
    launch: float = -inf  # of the last one
    result: Any = None
    done: float | None = None  # when it is over, once all have come
    sleepers: list["VirtualWorker"] = field(default_factory=list)
    left: int = 0  # members that are through


class GroupMembers:
    """The members of a group: one object for all of them. `ranks`: theirs, numbered in the whole run."""

    def __init__(self, ranks: Sequence[int], fabric: ModelledNetwork) -> None:
        self.ranks, self._fabric = ranks, fabric
        self.places = {rank: place for place, rank in enumerate(ranks)}

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        return numbered([self._fabric.host(rank) for rank in self.ranks])


class PostedReceive(Protocol):
    """A receive that waits for its message."""

    message: VirtualMessage | None
    sleeper: "VirtualWorker | None"


@dataclass
class VirtualMutex:
    channel: str
    taken: int = 0
    holder: "VirtualWorker | None" = None
    queue: deque["VirtualWorker"] = field(default_factory=deque)


class VirtualWorker(Runner):
    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.ledger = Ledger()
        # messages for which no receive was posted yet
        self.inbox: defaultdict[Stream, deque[VirtualMessage]] = defaultdict(deque)
        self.posted: defaultdict[Stream, deque[PostedReceive]] = defaultdict(deque)  # receives without a message yet
        self.arrivals: dict[str, list[tuple[float, int, int]]] = {}  # group -> heap of (arrival, source, number)
        self.listens: str | None = None  # the group of the recv_any that it sleeps in
        self.expected = inf  # when the message arrives that it will wake up for, there

    def collect(self, stream: Stream) -> VirtualMessage:
        """The next message of `stream`, which is there."""
        queue = self.inbox[stream]
        message = queue.popleft()
        if not queue:
            del self.inbox[stream]
        return message


class ClusterState:
    """All that the workers of one run share."""

    def __init__(self, size: int, network: Network, memory: float, watch: Watch | None) -> None:
        self.watch = watch
        self.size, self.fabric, self.memory = size, ModelledNetwork(network, size, links_here()), memory
        self.workers = [VirtualWorker(rank) for rank in range(size)]
        self.turns = Turns(self.workers, self.fabric.links.happen, self.fabric.links.stopped)
        self.shares_memory = False  # all that workers compute can be seen
        self.stop = False  # somebody asked to save and stop
        self.begun: dict[str, int] = {}  # topic -> the furthest step that one of those who step together has begun
        self.stops: dict[str, int] = {}  # topic -> the step that they leave before
        self.posted: dict[str, str] = {}  # the board
        self.boards: list[VirtualKeyValues] = []
        self.everyone = GroupMembers(range(size), self.fabric)
        self.readers: defaultdict[str, list[VirtualWorker]] = defaultdict(list)
        self.meetings: dict[tuple[str, int], VirtualMeeting] = {}
        self._log = hashlib.blake2b(digest_size=16)

    def request_stop(self) -> None:
        """Ask all workers to save and stop; from any thread, a signal's handler too."""
        self.stop = True

    def live_metrics(self) -> dict[int, str]:
        """Returns the live metrics of each worker that has some, from any thread."""
        return {each.rank: each.live_metrics() for each in list(self.boards) if each.live_metrics is not None}

    def digest(self) -> str:
        """A hash of training's events so far: who did what with whom, when, and how many bytes."""
        return self._log.hexdigest()

    def log(self, clock: float, worker: VirtualWorker, event: str, peer: int, size: int) -> None:
        """Notes an event of training."""
        self._log.update(_EVENT.pack(clock, worker.rank, event.encode(), peer, size))


class VirtualKeyValues(SharedKeyValues):
    """A board in this process's memory. Who reads before the writer has posted waits until then."""

    def __init__(self, cluster: ClusterState, worker: VirtualWorker) -> None:
        self.rank, self._cluster, self._worker = worker.rank, cluster, worker

    def post(self, key: str, value: str) -> None:
        self._cluster.turns.catch_up(self._worker)
        self._cluster.posted[key] = value
        for reader in self._cluster.readers.pop(key, []):
            self._cluster.turns.wake(reader, reader.clock if reader.ledger.is_aside else self._worker.clock)

    def read(self, key: str, writer: int, look: Look | None = None) -> str:
        cluster = self._cluster
        cluster.turns.catch_up(self._worker)
        while key not in cluster.posted:
            cluster.readers[key].append(self._worker)
            cluster.turns.sleep(self._worker, lambda: f"waits for '{key}' from worker {writer}")
        return cluster.posted[key]

    def stops_before(self, step: int, topic: str) -> bool:
        begun, stops = self._cluster.begun, self._cluster.stops
        furthest = begun.get(topic, step - 1)
        if self._cluster.stop and topic not in stops:
            stops[topic] = max(step, furthest + 1)
        if topic in stops and step >= stops[topic]:
            return True
        begun[topic] = max(step, furthest)
        return False

    def stop_requested(self) -> bool:
        self._cluster.turns.catch_up(self._worker)
        return self._cluster.stop

    def request_stop(self) -> None:
        self._cluster.turns.catch_up(self._worker)
        self._cluster.request_stop()

    def doing(self, what: str) -> None:
        pass
