"""The sharing of links: flows of bytes that get max-min fair rates, simulated event by event.

The model is the fluid one of fair queueing (Bertsekas and Gallager 1992, "Data Networks", section 6.5.2). A flow holds
some links, at one rate in all of them. Rates are max-min fair: no flow could have more unless one that has no more than
it had less. They are found by filling: all rates grow alike until a link is full, whose flows keep theirs; the others
grow on. When a flow begins or ends, the rates of those that share links with it, directly or through others, are found
anew.

Flows of one connection go one after the other, in the order of posting, as messages on a TCP connection do; different
connections share. So what waits for a busy receiver keeps nobody from sending to another one.

A link may change its bandwidth at given moments (`LinkChange`). Flows over a link without bandwidth wait, as TCP sends
again what did not arrive.

Time only goes on: `happen` lets one moment's events happen. Where several are due at once, flows end in the order in
which they began, then links change, and flows begin in the order in which they were posted.

The links are numbers to others. `SharedLinks` computes the events in Python. `NativeLinks` (native_links.py) computes
the same events, to the bit, in C.
"""

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

Ended = Callable[[float], None]  # called with the moment at which a flow's last byte has left

_ENDS, _BEGINS = 0, 1  # at the same time, ends come first
_ROUNDING = 1e-12  # so that flows that have the same rate have it to the last bit, and end at the same time


@dataclass(eq=False, slots=True)
class Lane:
    """One direction of a link. `flows`: that it carries now."""

    bandwidth: float  # bytes a second
    flows: "dict[Flow, None]" = field(default_factory=dict, repr=False)


@dataclass(eq=False, slots=True)
class Flow:
    connection: Hashable
    lanes: Sequence[Lane]
    left: float  # bytes that had not passed at `since`
    posted: float
    ended: Ended
    since: float = 0.0
    rate: float = 0.0
    entry: int = -1  # of the event that is its end
    bandwidth: float = field(init=False)  # of the slowest of `lanes`: its rate when nobody shares them

    def __post_init__(self) -> None:
        self.bandwidth = _slowest(self.lanes)


@dataclass(frozen=True)
class LinkChange:
    """The bandwidths of some lanes, by number, from the moment `at` on. `why`: the reason, for a message to people."""

    at: float
    lanes: Sequence[tuple[int, float]]
    why: str


class ModelledLinks(ABC):
    """The flows under way over numbered lanes."""

    def __init__(self) -> None:
        self._changes: Iterator[LinkChange] = iter(())  # after the next one
        self._change: LinkChange | None = None  # the next one
        self._down: dict[int, str] = {}  # lanes without bandwidth, and why

    def plan(self, changes: Iterable[LinkChange]) -> None:
        """Has links change. `changes` come in the order of their moments; there may be no end of them."""
        self._changes = iter(changes)
        self._change = next(self._changes, None)

    def stopped(self) -> list[str]:
        """Returns why the flows wait that have no bandwidth now."""
        return list(dict.fromkeys(why for lane, why in self._down.items() if self._carries(lane)))

    def _apply(self, change: LinkChange) -> None:
        """Applies the change that is due, and takes up the next one."""
        self._change = next(self._changes, None)
        for lane, bandwidth in change.lanes:
            self._set_bandwidth(lane, bandwidth)
            self._down.pop(lane, None)
            if bandwidth == 0:
                self._down[lane] = change.why

    @abstractmethod
    def add(self, bandwidth: float) -> int:
        """Returns the number of a new lane. `bandwidth`: bytes a second."""

    @abstractmethod
    def bandwidth(self, lane: int) -> float:
        """Returns the bandwidth that a lane has now."""

    @abstractmethod
    def post(self, connection: Hashable, lanes: Sequence[int], nbytes: float, at: float, ended: Ended) -> None:
        """A flow that begins at `at`, or when those before it on its connection have ended.

        `ended` may be called before this returns: when the flow takes no time.
        """

    @abstractmethod
    def happen(self, before: float) -> bool:
        """Lets the next moment's events happen; False if there is none until `before`.

        What is posted to begin at `before` itself begins later, together with what is still to be posted for then; it
        cannot end yet.
        """

    @abstractmethod
    def _carries(self, lane: int) -> bool:
        """Returns whether a flow is under way over `lane`."""

    @abstractmethod
    def _set_bandwidth(self, lane: int, bandwidth: float) -> None: ...


class SharedLinks(ModelledLinks):
    """Flows under way, in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0  # the last event's moment
        self._events: list[tuple[float, int, int, Flow]] = []  # heap of (moment, kind, number, flow)
        self._number = 0
        self._queues: dict[Hashable, deque[Flow]] = {}  # of connections that are busy: the flow under way, then others
        self._touched: dict[Lane, None] = {}  # whose flows are others since rates were last found
        self._lanes: list[Lane] = []

    def add(self, bandwidth: float) -> int:
        self._lanes.append(Lane(bandwidth))
        return len(self._lanes) - 1

    def bandwidth(self, lane: int) -> float:
        return self._lanes[lane].bandwidth

    def post(self, connection: Hashable, lanes: Sequence[int], nbytes: float, at: float, ended: Ended) -> None:
        flow = Flow(connection, [self._lanes[lane] for lane in lanes], nbytes, at, ended)
        queue = self._queues.get(connection)
        if queue is not None:
            queue.append(flow)
        elif flow.bandwidth > 0 and at + nbytes / flow.bandwidth <= at:
            ended(at)
        else:
            self._queues[connection] = deque([flow])
            self._push(at, _BEGINS, flow)

    def happen(self, before: float) -> bool:
        while True:
            if self._touched:
                if self.now < before:
                    self._share()
            elif self._is_idle(before):
                return False
            moment, kind = self._next()
            if self._change is not None and self._comes_first(self._change, moment, kind, before):
                self.now = max(self.now, self._change.at)
                self._apply(self._change)
                continue
            if moment > before or (kind == _BEGINS and moment == before):
                return False
            self.now = max(self.now, moment)
            some_ended = False
            while self._next()[0] == moment:
                _, kind, _, flow = heapq.heappop(self._events)
                if kind == _BEGINS:
                    some_ended |= self._begin(flow, moment)
                else:
                    self._end(flow, moment)
                    some_ended = True
            if some_ended:
                return True

    def _is_idle(self, before: float) -> bool:
        """Returns whether nothing is due until `before`, events that no longer hold included; most often so."""
        is_due = self._change is not None and self._change.at <= before
        return not is_due and (not self._events or self._events[0][0] > before)

    def _next(self) -> tuple[float, int]:
        """(moment, kind) of the next event that still holds."""
        events = self._events
        while events and events[0][1] == _ENDS and events[0][2] != events[0][3].entry:
            heapq.heappop(events)
        return events[0][:2] if events else (inf, _BEGINS)

    def _comes_first(self, change: LinkChange, moment: float, kind: int, before: float) -> bool:
        """Returns whether a change is due before the next event. When nobody can run, it matters to flows alone."""
        if change.at > before or (before == inf and not self._queues):
            return False
        return change.at < moment or (change.at == moment and kind == _BEGINS)

    def _carries(self, lane: int) -> bool:
        return bool(self._lanes[lane].flows)

    def _set_bandwidth(self, lane: int, bandwidth: float) -> None:
        its = self._lanes[lane]
        its.bandwidth = bandwidth
        self._touched[its] = None
        for flow in its.flows:
            flow.bandwidth = _slowest(flow.lanes)

    def _push(self, moment: float, kind: int, flow: Flow) -> int:
        self._number += 1
        heapq.heappush(self._events, (moment, kind, self._number, flow))
        return self._number

    def _begin(self, flow: Flow, moment: float) -> bool:
        """The first of its connection. Whether it ended at once.

        What begins in the past of others (its worker waited outside training's time for workers that were ahead) has
        the whole bandwidth until now: the past is not played again.
        """
        flow.bandwidth = _slowest(flow.lanes)  # which may have changed since it was posted
        alone = flow.left / flow.bandwidth if flow.bandwidth > 0 else inf  # seconds
        if moment + alone <= self.now:
            self._leave(flow, moment + alone)
            return True
        flow.left -= flow.left * ((self.now - moment) / alone)
        flow.since = self.now
        for lane in flow.lanes:
            lane.flows[flow] = None
            self._touched[lane] = None
        return False

    def _end(self, flow: Flow, moment: float) -> None:
        flow.entry = -1
        for lane in flow.lanes:
            del lane.flows[flow]
            self._touched[lane] = None
        self._leave(flow, moment)

    def _leave(self, flow: Flow, moment: float) -> None:
        """Removes a flow that has ended; the next one of its connection begins."""
        queue = self._queues[flow.connection]
        queue.popleft()
        if queue:
            self._push(max(moment, queue[0].posted), _BEGINS, queue[0])
        else:
            del self._queues[flow.connection]
        flow.ended(moment)

    def _share(self) -> None:
        """Find the rates of flows that share links with those which began or ended, directly or through others."""
        flows = self._affected()
        if not flows:
            return
        rates = fair_rates(flows)
        for flow, rate in zip(flows, rates, strict=True):
            if rate != flow.rate:
                flow.left = max(flow.left - flow.rate * (self.now - flow.since), 0.0)
                flow.since, flow.rate = self.now, rate
                flow.entry = self._push(self.now + flow.left / rate, _ENDS, flow) if rate > 0 else -1

    def _affected(self) -> list[Flow]:
        found: dict[Flow, None] = {}
        lanes, seen = list(self._touched), self._touched
        self._touched = {}
        for lane in lanes:  # grows
            for flow in lane.flows:
                if flow not in found:
                    found[flow] = None
                    for other in flow.lanes:
                        if other not in seen:
                            seen[other] = None
                            lanes.append(other)
        return list(found)


def _slowest(lanes: Sequence[Lane]) -> float:
    return min([lane.bandwidth for lane in lanes], default=inf)


def fair_rates(flows: Sequence[Flow]) -> list[float]:
    """Max-min fair rates of flows of which no other one shares a link with any."""
    if len(flows) == 1:  # most often
        return [flows[0].bandwidth]
    open_flows: dict[Lane, int] = {}  # of each link, without a rate yet
    for flow in flows:
        for lane in flow.lanes:
            open_flows[lane] = open_flows.get(lane, 0) + 1
    numbers = {lane: number for number, lane in enumerate(open_flows)}
    left = {lane: lane.bandwidth for lane in open_flows}
    rates: dict[Flow, float] = {}
    heap = [(lane.bandwidth / count, numbers[lane], lane) for lane, count in open_flows.items()]
    heapq.heapify(heap)
    while len(rates) < len(flows):
        share, _, fullest = heapq.heappop(heap)
        count = open_flows[fullest]
        if not count:
            continue
        current = left[fullest] / count
        if current > share * (1 + _ROUNDING):  # some of its flows got less elsewhere
            heapq.heappush(heap, (current, numbers[fullest], fullest))
            continue
        for flow in fullest.flows:
            if flow not in rates:
                rates[flow] = share
                for lane in flow.lanes:
                    left[lane] -= share
                    open_flows[lane] -= 1
    return [rates[flow] for flow in flows]
