"""The times at which this worker was blocked, and on what. They divide a step into compute, communication and waiting.

An operation has a key that all its participants agree on. Blocked time counts as *waiting* until the last participant
has launched the operation, and as *communication* from then on. The launch times of the others are known only
afterwards, so each worker keeps its own record and `split` joins them once the run is over.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

KEPT = 20_000  # the most recent operations kept; enough for a median, bounded for a long run


class Operation(NamedTuple):
    channel: str  # a collective's group, or "group:source>destination"
    number: int  # the how-manieth operation on that channel
    launch: float  # seconds on this worker's clock
    start: float  # blocked from ...
    end: float  # ... until
    primitive: str = ""  # all_reduce, send, recv, ...
    purpose: str = ""  # the algorithm's word for it: push, fetch, gradients, ...; of a message, the sender's


class TimedPass(NamedTuple):
    """A pass that this worker computed from `start` to `end`, by a name such as 2F0.

    `version`: how many updates were made of the weights that it read; None where a step has one at its end.
    """

    name: str
    start: float
    end: float
    version: int | None = None


class NamedOperations:
    """A context that sets a timeline's purpose, and back. It is entered once for each message."""

    __slots__ = ("_before", "_purpose", "_timeline")

    def __init__(self, timeline: "Timeline", purpose: str) -> None:
        self._timeline, self._purpose = timeline, purpose

    def __enter__(self) -> None:
        self._before, self._timeline.purpose = self._timeline.purpose, self._purpose

    def __exit__(self, *error: object) -> None:
        self._timeline.purpose = self._before


class Timeline:
    """The operations of one worker. `purpose`: the label of those that are launched now."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self.operations: deque[Operation] = deque(maxlen=kept)
        self.passes: deque[TimedPass] | None = None  # None: nobody asked for them
        self.blocked = 0.0  # seconds, of all operations so far
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self.purpose = ""

    def named(self, purpose: str) -> "NamedOperations":
        """Returns a context. Operations launched within it are labelled `purpose` in a trace."""
        return NamedOperations(self, purpose)

    def keep_passes(self) -> None:
        """The most recent ones, from now on."""
        self.passes = deque(maxlen=self.kept)

    def launched(self, channel: str, primitive: str, at: float, number: int | None = None) -> Operation:
        """An operation that nobody has been blocked on yet. `number`: on its channel; None for the next."""
        if number is None:
            self._numbers[channel] += 1
            number = self._numbers[channel]
        return Operation(channel, number, at, at, at, primitive, self.purpose)

    def add_at_once(self, channel: str, primitive: str, number: int, launch: float, start: float, end: float) -> None:
        """Records that this worker was blocked from `start` until `end` on an operation that others know by number."""
        self.operations.append(Operation(channel, number, launch, start, end, primitive, self.purpose))
        self.blocked += end - start

    def add(self, operation: Operation, start: float, end: float, launch: float | None = None) -> None:
        """Records that this worker was blocked on `operation` from `start` until `end`.

        `launch`: when its device came to the operation; None: when it was launched.
        """
        channel, number, launched, _, _, primitive, purpose = operation
        launch = launched if launch is None else launch
        self.operations.append(Operation(channel, number, launch, start, end, primitive, purpose))
        self.blocked += end - start


@dataclass(frozen=True)
class StepSplit:
    """Seconds of one step of one worker. `hidden`: of compute, at most, that went on while something of its own, which
    all had launched, was under way; when that was over is known only where it was waited for.
    """

    compute: float
    communication: float
    waiting: float
    hidden: float = 0.0


class Blocked(NamedTuple):
    """A worker blocked on one operation: it waits until `ready`, and communicates from then on."""

    operation: Operation
    ready: float


def blocked(
    steps: list[tuple[float, float]],
    operations: list[Operation],
    launches: dict[tuple[str, int], float],
) -> list[list[Blocked]]:
    """Returns the times that one worker was blocked in each of its steps, in order of time.

    `steps`: (start, end) of the worker's steps, in order. `operations`: what it was blocked on; those that begin
    outside the steps are left out. `launches`: for each operation the launch of its last participant, same clock.
    """
    found: list[list[Blocked]] = []
    ordered = sorted(operations, key=lambda operation: operation.start)
    i = 0
    for start, end in steps:
        within: list[Blocked] = []
        while i < len(ordered) and ordered[i].start < start:
            i += 1
        while i < len(ordered) and ordered[i].start < end:
            op = ordered[i]
            ready = min(max(launches[op.channel, op.number], op.start), op.end)
            within.append(Blocked(op, ready))
            i += 1
        found.append(within)
    return found


def split(
    steps: list[tuple[float, float]],
    operations: list[Operation],
    launches: dict[tuple[str, int], float],
) -> list[StepSplit]:
    """Split each step of one worker. Arguments as `blocked`."""
    splits: list[StepSplit] = []
    for (start, end), within in zip(steps, blocked(steps, operations, launches), strict=True):
        total = sum(operation.end - operation.start for operation, _ in within)
        waiting = sum(ready - operation.start for operation, ready in within)
        compute = max(end - start - total, 0.0)
        splits.append(StepSplit(compute, total - waiting, waiting, min(_hidden(start, within, launches), compute)))
    return splits


def _hidden(begin: float, within: list[Blocked], launches: dict[tuple[str, int], float]) -> float:
    """Returns the communication hidden behind compute: the time between two blocks while a later awaited operation was
    under way.
    """
    under_way = [
        float("inf") if op.primitive == "recv" else max(launches[op.channel, op.number], op.launch) for op, _ in within
    ]
    first = list(accumulate(reversed(under_way), min))[::-1]  # of those from here on
    hidden, free = 0.0, begin  # since when it is not blocked
    for (op, _), since in zip(within, first, strict=True):
        hidden += max(op.start - max(free, since), 0.0)
        free = max(free, op.end)
    return hidden


def last_launches(timelines: list[list[Operation]]) -> dict[tuple[str, int], float]:
    """Returns for each operation the time when the last of its participants launched it.

    A receive has no say in when its message is ready, so only the sender's launch counts there: receivers record
    theirs as -inf.
    """
    latest: dict[tuple[str, int], float] = {}
    for operations in timelines:
        for op in operations:
            key = (op.channel, op.number)
            latest[key] = max(latest.get(key, float("-inf")), op.launch)
    return latest
