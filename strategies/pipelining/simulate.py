"""How long a schedule takes, how much of that is bubble, and what each stage holds meanwhile: before anything runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .actions import Action, Kind, Schedule
from .check import does, placement, reads

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

    @property
    def seconds(self) -> float:
        return max(row[-1].end for row in self.events)

    @property
    def busy(self) -> list[float]:
        """Seconds that each worker computes."""
        return [sum(event.end - event.start for event in row) for row in self.events]

    @property
    def bubble(self) -> float:
        """The share of all workers' time in which they compute nothing."""
        return 1 - sum(self.busy) / (self.seconds * len(self.events))


def simulate(schedule: Schedule, times: Times, messages: Sequence[float] = ()) -> Simulation:
    """A schedule that was checked. `messages`: between each stage and the next one, either way, the seconds from the
    end of an action until another worker has what it made; none where nothing is said.

    They go on beside computation, and any number of them at once.
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
                assert action.kind in ("F", "B", "I", "W")
                event = Event(action, start, start + times[action.kind][action.stage])
                events[worker].append(event)
                ended |= dict.fromkeys(does(action), event.end)
                progress = True
    return Simulation(schedule, events)


def even(stages: int, forward: float = 1.0, inputs: float = 1.0, weights: float = 1.0) -> Times:
    """Every stage takes the same."""
    seconds: dict[Kind, float] = {"F": forward, "B": inputs + weights, "I": inputs, "W": weights}
    return {kind: [each] * stages for kind, each in seconds.items()}


Group = tuple[int, int]  # a stage, and a micro-batch


def peak(row: Sequence[Action], held: Callable[[set[Group]], int]) -> int:
    """The most that a worker holds at any one time. `held`: what those take that are between F and B or W."""
    now: set[Group] = set()
    most = 0
    for stage, kind, j in row:
        if kind == "F":
            now.add((stage, j))
            most = max(most, held(now))
        elif kind in ("B", "W"):
            now.discard((stage, j))
    return most


def in_flight(schedule: Schedule) -> list[int]:
    """For each stage, the most micro-batches whose activations it holds at once."""
    holders = placement(schedule)
    return [
        peak(schedule[worker], lambda now, stage=stage: sum(each == stage for each, _ in now))
        for stage, worker in enumerate(holders)
    ]


def live_versions(schedule: Schedule) -> list[int]:
    """For each stage, the most versions of its weights that are needed at once, the newest among them.

    F reads the newest; B, I and W read that of their F; U makes a new one. Without U there is one.
    """
    most = [1] * len(placement(schedule))
    for row in schedule:
        newest: dict[int, int] = {}
        read: dict[Group, int] = {}
        for stage, kind, j in row:
            if kind == "F":
                read[stage, j] = newest.get(stage, 0)
            elif kind in ("B", "W"):
                read.pop((stage, j), None)
            elif kind == "U":
                newest[stage] = newest.get(stage, 0) + 1
            live = {version for (each, _), version in read.items() if each == stage} | {newest.get(stage, 0)}
            most[stage] = max(most[stage], len(live))
    return most
