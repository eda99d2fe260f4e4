"""Simulates a schedule: its time, the bubble in it, and the memory of each stage, before anything runs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import nn

from ...batches import Samples
from ..core.batch import MessageTime, TimeOf
from .actions import Action, Kind, Schedule
from .check import does, placement, reads
from .without_flush import Versions

Times = Mapping[Kind, Sequence[float]]  # F, B, I, W -> seconds, by stage


@dataclass(frozen=True)
class Event:
    action: Action
    start: float  # seconds since the step began
    end: float


@dataclass(frozen=True)
class Simulation:
    schedule: Schedule
    events: list[list[Event]]  # [worker][place]
    versions: Versions | None = None  # that passes read, where it is not the newest
    window: float | None = None  # seconds of steady state that `events` are of, where that is not the whole schedule
    steps: int = 1  # that it takes so long for

    @property
    def seconds(self) -> float:
        return max(row[-1].end for row in self.events) if self.window is None else self.window

    @property
    def busy(self) -> list[float]:
        """Seconds that each worker computes."""
        return [sum(event.end - event.start for event in row) for row in self.events]

    @property
    def bubble(self) -> float:
        """The share of all workers' time in which they compute nothing."""
        return 1 - sum(self.busy) / (self.seconds * len(self.events))


@runtime_checkable
class Scheduled(Protocol):
    """A strategy whose replica's batch goes through its parts by a schedule."""

    def simulate(
        self, parts: Sequence[nn.Module], inputs: Samples, time: TimeOf, message: MessageTime
    ) -> Simulation | None:
        """Returns how a batch goes through the parts. `inputs`: on the meta device."""
        ...


def simulation_of(
    strategy: object, parts: Sequence[nn.Module], inputs: Samples, time: TimeOf, message: MessageTime
) -> Simulation | None:
    """Returns how a strategy's batch goes through its parts; None where that follows no schedule."""
    return strategy.simulate(parts, inputs, time, message) if isinstance(strategy, Scheduled) else None


def simulate(
    schedule: Schedule, times: Times, messages: Sequence[float] = (), versions: Versions | None = None
) -> Simulation:
    """A schedule that was checked, and the versions that it reads, where that is not the newest.

    `messages`: between each stage and the next one, either way, the seconds from the end of an action until another
    worker has what it made; none where nothing is said. They go on beside computation, and any number of them at once.
    """
    holders = placement(schedule)
    between = [*messages] or [0.0] * (len(holders) - 1)
    events: list[list[Event]] = [[] for _ in schedule]
    ended: dict[Action, float] = {}
    progress = True
    while progress:
        progress = False
        for worker, row in enumerate(schedule):
            for action in row[len(events[worker]) :]:
                needed = list(reads(action, len(holders)))
                if not all(each in ended for each in needed):
                    break
                ready = [
                    ended[each] + (between[min(each.stage, action.stage)] if holders[each.stage] != worker else 0.0)
                    for each in needed
                ]
                start = max([*ready, events[worker][-1].end if events[worker] else 0.0])
                event = Event(action, start, start + _time(action, times))
                events[worker].append(event)
                ended |= dict.fromkeys(does(action), event.end)
                progress = True
    return Simulation(schedule, events, versions)


def _time(action: Action, times: Times) -> float:
    """An update takes none here: it is not in what a step takes with a flush, either."""
    assert action.kind in ("F", "B", "I", "W", "U")
    return 0.0 if action.kind == "U" else times[action.kind][action.stage]


def steady(simulation: Simulation, begins: Action, ends: Action, steps: int) -> Simulation:
    """Returns the part of a simulation from the start of `begins` to that of `ends`: `steps` steps, in steady state."""
    starts = {event.action: event.start for row in simulation.events for event in row}
    begin, end = starts[begins], starts[ends]
    events = [
        [
            Event(event.action, max(event.start, begin) - begin, min(event.end, end) - begin)
            for event in row
            if event.end > begin and event.start < end
        ]
        for row in simulation.events
    ]
    return Simulation(simulation.schedule, events, simulation.versions, end - begin, steps)


Group = tuple[int, int]  # a stage, and a micro-batch


def peak(
    row: Sequence[Action],
    taken: Callable[[Group], int],
    batch_of: Callable[[Group], Group] = lambda group: group,
    common: Callable[[int], int] = lambda stage: 0,
    again: Callable[[Group, bool], int] = lambda group, others: 0,
) -> int:
    """Returns the most that a worker holds at any one time.

    Args:
        taken: What a micro-batch takes between F and B or W.
        batch_of: The stage and the batch of a micro-batch.
        common: What a batch takes in a stage, while one of its micro-batches is there.
        again: What a micro-batch takes beside it in its backward pass; whether others of its batch are there.
    """
    alive = Counter[Group]()  # micro-batches of each batch
    now = most = 0
    for stage, kind, j in row:
        batch = batch_of((stage, j))
        if kind == "F":
            now += taken((stage, j)) + (0 if alive[batch] else common(stage))
            alive[batch] += 1
            most = max(most, now)
        elif kind in ("B", "W"):
            most = max(most, now + again((stage, j), alive[batch] > 1))
            alive[batch] -= 1
            now -= taken((stage, j)) + (0 if alive[batch] else common(stage))
    return most


def in_flight(schedule: Schedule) -> list[int]:
    """Returns, for each stage, the most micro-batches whose activations it holds at once."""
    holders = placement(schedule)
    return [
        peak(schedule[worker], lambda group, stage=stage: int(group[0] == stage))
        for stage, worker in enumerate(holders)
    ]


def live_versions(schedule: Schedule, versions: Versions | None = None) -> list[int]:
    """Returns, for each stage, the most versions of its weights that are needed at once, the newest among them.

    U makes a new one. B, I and W read that of their F, which is what `versions` says; without it, the newest. A version
    that nobody has read yet, but will, is needed too. Without U there is one.
    """
    most = [1] * len(placement(schedule))
    for row in schedule:
        read = _versions_of(row) if versions is None else versions
        ahead = Counter((stage, read[stage, j]) for stage, kind, j in row if kind == "F")
        newest: Counter[int] = Counter()
        for stage, kind, j in row:
            if kind in ("B", "W"):
                ahead[stage, read[stage, j]] -= 1
            elif kind == "U":
                newest[stage] += 1
            live = {v for (each, v), passes in ahead.items() if each == stage and passes and v <= newest[stage]}
            most[stage] = max(most[stage], len(live | {newest[stage]}))
    return most


def _versions_of(row: Sequence[Action]) -> dict[Group, int]:
    """Returns the version that each forward pass reads: the newest."""
    newest: Counter[int] = Counter()
    read: dict[Group, int] = {}
    for stage, kind, j in row:
        if kind == "F":
            read[stage, j] = newest[stage]
        elif kind == "U":
            newest[stage] += 1
    return read
