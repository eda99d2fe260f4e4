"""Where every worker's time went, as a file that ui.perfetto.dev and chrome://tracing show.

Format: "Trace Event Format" (Google, 2016): complete events ("X") of one process, a thread a worker or server,
microseconds since the first step that is shown.
A step divides into what the worker was blocked on, waiting until the last participant launched the operation and
communicating from then on (comm/timeline.py), and compute: the rest. Between steps (evaluation, checkpoints) nothing is
shown. A server's operations are shown, and not what it does between them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..comm.timeline import Blocked, Operation, blocked, last_launches
from ..tracking.run_directory import write_atomically
from .meters import Report

PROCESS = 1
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class Phase(NamedTuple):
    """What a worker did from `start` to `end`, in seconds."""

    start: float
    end: float
    name: str  # compute, waiting, communication
    channel: str = ""  # of the operation


class Event(NamedTuple):
    """A phase in whole nanoseconds since the first step, so that rounding makes no overlaps."""

    start: int
    rank: int
    end: int
    name: str
    told: dict[str, int | str]


def write_trace(path: Path, reports: list[Report], run: str, modelled: bool) -> None:
    """Of the run's workers and servers. Raises StorageError."""
    write_atomically(path, render(reports, run, modelled))


def render(reports: list[Report], run: str, modelled: bool) -> str:
    """The file: JSON, one event a line. `modelled`: the clock is that of a virtual cluster."""
    reports = sorted(reports, key=lambda report: report.rank)
    events: list[Event] = []
    shown: dict[str, dict[str, int]] = {}
    launches = last_launches([report.operations for report in reports])
    begin, end = _span(reports)
    for report in reports:
        if report.kind == "server":
            [within] = blocked([(begin, end)], _since(begin, report.operations), launches)
            phases = (phase for phase in phases_of((begin, end), within) if phase.name != "compute")
            events += _events(phases, report.rank, begin, {})
            shown[_name(report)] = {"operations_shown": len(within)}
        else:
            steps = report.whole(report.steps)
            each = zip(steps, blocked(steps, report.operations, launches), strict=True)
            for number, (step, within) in enumerate(each, report.trained_steps - len(steps) + 1):
                events += _events(phases_of(step, within), report.rank, begin, {"step": number})
            shown[_name(report)] = {"steps_trained": report.trained_steps, "steps_shown": len(steps)}
    events.sort(key=lambda event: event[:2])
    about = {"run": run, "clock": "modelled" if modelled else "measured", "shown": shown}
    lines = [*_names(reports, f"paceline {run}" + " (modelled)" * modelled), *map(_line, events)]
    return (
        f'{{"displayTimeUnit":"ms","otherData":{_ENCODER.encode(about)},"traceEvents":[\n'
        + ",\n".join(lines)
        + "\n]}\n"
    )


def _span(reports: list[Report]) -> tuple[float, float]:
    """From the first step that is shown to the last one's end."""
    steps = [step for report in reports for step in report.whole(report.steps)]
    return (min(start for start, _ in steps), max(end for _, end in steps)) if steps else (0.0, 0.0)


def phases_of(step: tuple[float, float], within: list[Blocked]) -> Iterator[Phase]:
    """A step as one thing after the other, without gaps. `within`: what the worker was blocked on, by start."""
    now, over = step
    for operation in within:
        # an operation that torch waits for by itself may end while we are blocked on the next
        start, ready, end = (min(max(time, now), over) for time in operation[1:])
        yield Phase(now, start, "compute")
        yield Phase(start, ready, "waiting", operation.channel)
        yield Phase(ready, end, "communication", operation.channel)
        now = end
    yield Phase(now, over, "compute")


def _since(begin: float, operations: list[Operation]) -> list[Operation]:
    return [op._replace(start=max(op.start, begin)) for op in operations if op.end > begin]


def _events(phases: Iterator[Phase], rank: int, begin: float, told: dict[str, int]) -> Iterator[Event]:
    """Those that take time."""
    for phase in phases:
        start, end = round((phase.start - begin) * 1e9), round((phase.end - begin) * 1e9)
        if end > start:
            yield Event(start, rank, end, phase.name, told | ({"operation": phase.channel} if phase.channel else {}))


def _line(event: Event) -> str:
    return _ENCODER.encode(
        {
            "name": event.name,
            "ph": "X",
            "ts": event.start / 1e3,
            "dur": (event.end - event.start) / 1e3,
            "pid": PROCESS,
            "tid": event.rank,
            "args": event.told,
        }
    )


def _names(reports: list[Report], process: str) -> Iterator[str]:
    yield _ENCODER.encode({"name": "process_name", "ph": "M", "pid": PROCESS, "args": {"name": process}})
    for report in reports:
        about = {"ph": "M", "pid": PROCESS, "tid": report.rank}
        yield _ENCODER.encode({"name": "thread_name", **about, "args": {"name": _name(report)}})
        yield _ENCODER.encode({"name": "thread_sort_index", **about, "args": {"sort_index": report.rank}})


def _name(report: Report) -> str:
    return f"{report.kind} {report.rank}"
