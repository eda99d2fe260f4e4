"""Writes a timeline of every worker, as a file that ui.perfetto.dev and chrome://tracing show.

Format: "Trace Event Format" (Google, 2016): complete events ("X") of one process, a thread a worker or server,
microseconds since the first step that is shown.
A step divides into what the worker was blocked on, waiting until the last participant launched the operation and
communicating from then on (comm/timeline.py), and compute: the rest. A pipeline's passes are called what its schedule
calls them, such as 2F0. Between steps (evaluation, checkpoints) nothing is shown. A server's operations are shown, and
not what it does between them.
Flow events ("s", "f") are arrows: a message, from its launch in the sender's thread to the end of its receipt in the
receiver's. It has one where both ends are shown.

Beside it each worker on a GPU writes what the GPU's streams do in a few steps, from torch's profiler.
"""

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, ParamSpec

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from ...comm.timeline import Blocked, Operation, TimedPass, blocked, last_launches
from ...tracking.run_directory import write_atomically
from .meters import Report

PROCESS = 1
_ENCODER = json.JSONEncoder(separators=(",", ":"))
# of the streams: the first steps, in which memory is taken and kernels are chosen; the steps that are kept
LEFT_OUT, STEPS = 2, 3
_ACTIVITIES = {"cuda": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}
P = ParamSpec("P")


class TracePhase(NamedTuple):
    """The activity of a worker from `start` to `end`, in seconds."""

    start: float
    end: float
    kind: str  # compute, waiting, communication
    operation: Operation | None = None
    name: str = "compute"  # of what was computed
    version: int | None = None  # of the weights that it read


class TraceEvent(NamedTuple):
    """A phase in whole nanoseconds since the first step, so that rounding makes no overlaps."""

    start: int
    rank: int
    end: int
    kind: str
    name: str
    told: dict[str, int | str | list[int]]


Key = tuple[str, int]  # channel and number of an operation


class TraceMessage(NamedTuple):
    """A message, as far as the operations at its two ends were recorded."""

    ends: dict[str, tuple[int, Operation]]  # send, recv -> the rank and its operation
    purpose: str


def write_trace(path: Path, reports: list[Report], run: str, modelled: bool) -> None:
    """Writes the trace of the run's workers and servers. Raises StorageError."""
    write_atomically(path, render(reports, run, modelled))


def render(reports: list[Report], run: str, modelled: bool) -> str:
    """The file: JSON, one event a line. `modelled`: the clock is that of a virtual cluster."""
    reports = sorted(reports, key=lambda report: report.rank)
    names = {report.rank: _name(report) for report in reports}
    messages = _messages(reports)
    members = _members(reports)
    events: list[TraceEvent] = []
    shown: dict[str, dict[str, int]] = {}
    launches = last_launches([report.operations for report in reports])
    begin, end = _span(reports)
    for report in reports:
        if report.kind == "server":
            [within] = blocked([(begin, end)], _since(begin, report.operations), launches)
            phases = (phase for phase in phases_of((begin, end), within) if phase.kind != "compute")
            events += _events(phases, report.rank, begin, {}, messages, members, names)
            shown[_name(report)] = {"operations_shown": len(within)}
        else:
            steps = report.whole(report.steps)
            each = zip(steps, blocked(steps, report.operations, launches), strict=True)
            for number, (step, within) in enumerate(each, report.trained_steps - len(steps) + 1):
                phases = by_pass(phases_of(step, within), report.passes)
                events += _events(phases, report.rank, begin, {"step": number}, messages, members, names)
            shown[_name(report)] = {"steps_trained": report.trained_steps, "steps_shown": len(steps)}
    events.sort(key=lambda event: event[:2])
    about = {"run": run, "clock": "modelled" if modelled else "measured", "began": begin, "shown": shown}
    threads = _names(reports, f"paceline {run}" + " (modelled)" * modelled)
    lines = [*threads, *map(_line, events), *_arrows(messages, events, begin)]
    return (
        f'{{"displayTimeUnit":"ms","otherData":{_ENCODER.encode(about)},"traceEvents":[\n'
        + ",\n".join(lines)
        + "\n]}\n"
    )


def _span(reports: list[Report]) -> tuple[float, float]:
    """Returns the beginning of the first step that is shown, and the end of the last."""
    steps = [step for report in reports for step in report.whole(report.steps)]
    return (min(start for start, _ in steps), max(end for _, end in steps)) if steps else (0.0, 0.0)


def phases_of(step: tuple[float, float], within: list[Blocked]) -> Iterator[TracePhase]:
    """A step as one thing after the other, without gaps. `within`: what the worker was blocked on, by start."""
    now, over = step
    for operation, then in within:
        # an operation that torch waits for by itself may end while we are blocked on the next
        start, ready, end = (min(max(time, now), over) for time in (operation.start, then, operation.end))
        yield TracePhase(now, start, "compute")
        yield TracePhase(start, ready, "waiting", operation)
        yield TracePhase(ready, end, "communication", operation)
        now = end
    yield TracePhase(now, over, "compute")


def by_pass(phases: Iterable[TracePhase], passes: Sequence[TimedPass]) -> Iterator[TracePhase]:
    """Computing cut where passes, one after the other, begin and end; each piece has the name of its pass."""
    for phase in phases:
        now = phase.start
        if phase.kind == "compute":
            for i in range(bisect_left(passes, now, key=lambda each: each.end), len(passes)):
                name, start, end, version = passes[i]
                if start >= phase.end:
                    break
                start, end = max(start, now), min(end, phase.end)
                yield phase._replace(start=now, end=start)
                yield TracePhase(start, end, "compute", name=name, version=version)
                now = end
        yield phase._replace(start=now)


def _since(begin: float, operations: list[Operation]) -> list[Operation]:
    return [op._replace(start=max(op.start, begin)) for op in operations if op.end > begin]


def _messages(reports: list[Report]) -> dict[Key, TraceMessage]:
    ends: defaultdict[Key, dict[str, tuple[int, Operation]]] = defaultdict(dict)
    for report in reports:
        for op in report.operations:
            if op.primitive in ("send", "recv"):
                ends[op.channel, op.number][op.primitive] = report.rank, op
    return {key: TraceMessage(both, both["send"][1].purpose if "send" in both else "") for key, both in ends.items()}


def _members(reports: list[Report]) -> dict[Key, list[int]]:
    """Returns the ranks that take part in each collective operation, whether or not they were blocked on it."""
    ranks: defaultdict[Key, list[int]] = defaultdict(list)
    for report in reports:
        for op in report.operations:
            if op.primitive not in ("send", "recv"):
                ranks[op.channel, op.number].append(report.rank)
    return ranks


def _events(
    phases: Iterator[TracePhase],
    rank: int,
    begin: float,
    told: dict[str, int],
    messages: Mapping[Key, TraceMessage],
    members: dict[Key, list[int]],
    names: Mapping[int, str],
) -> Iterator[TraceEvent]:
    """Yields the events that take time. Only one event of an operation has its `members`."""
    for phase in phases:
        start, end = _nanoseconds(phase.start, begin), _nanoseconds(phase.end, begin)
        if end <= start:
            continue
        if (operation := phase.operation) is None:
            read: dict[str, int | str | list[int]] = {} if phase.version is None else {"version": phase.version}
            yield TraceEvent(start, rank, end, phase.kind, phase.name, {**told, **read})
            continue
        key = operation.channel, operation.number
        message = messages.get(key)
        about: dict[str, int | str | list[int]] = {"operation": operation.channel, "number": operation.number}
        if message is not None:
            words = {"send": "from", "recv": "to"}
            about |= {words[primitive]: names[other] for primitive, (other, _) in message.ends.items()}
        elif phase.kind == "communication" and key in members:
            about["among"] = members.pop(key)
        name = _called(operation, message.purpose if message else operation.purpose)
        waiting = "waiting for " * (phase.kind == "waiting")
        yield TraceEvent(start, rank, end, phase.kind, f"{waiting}{name}", told | about)


def _called(operation: Operation, purpose: str) -> str:
    """`push (send)`, `all_reduce`."""
    primitive = operation.primitive or operation.channel
    return f"{purpose} ({primitive})" if purpose else primitive


def _nanoseconds(time: float, begin: float) -> int:
    return round((time - begin) * 1e9)


def _arrows(messages: Mapping[Key, TraceMessage], events: list[TraceEvent], begin: float) -> Iterator[str]:
    """Two events for each message that left, and whose receipt ended, in something that is shown."""
    shown: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        shown[event.rank].append((event.start, event.end))
    known = (message for message in messages.values() if len(message.ends) == 2)
    for number, message in enumerate(known, 1):
        (sender, sent), (receiver, received) = message.ends["send"], message.ends["recv"]
        came = _nanoseconds(received.end, begin) - 1  # the last nanosecond of its receipt
        # a server is shown from when it is blocked on, a little after the launch
        left = [_nanoseconds(time, begin) for time in (sent.launch, sent.start)]
        left = [time for time in left if time <= came and _is_within(time, shown[sender])]
        if not left or not _is_within(came, shown[receiver]):
            continue
        about = {"name": message.purpose or "message", "cat": "message", "id": number, "pid": PROCESS}
        yield _ENCODER.encode({**about, "ph": "s", "ts": left[0] / 1e3, "tid": sender})
        yield _ENCODER.encode({**about, "ph": "f", "bp": "e", "ts": came / 1e3, "tid": receiver})


def _is_within(time: int, spans: list[tuple[int, int]]) -> bool:
    """`spans`: one after the other."""
    i = bisect_right(spans, time, key=lambda span: span[0]) - 1
    return i >= 0 and time < spans[i][1]


def _line(event: TraceEvent) -> str:
    return _ENCODER.encode(
        {
            "name": event.name,
            "cat": event.kind,
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


@contextmanager
def streams_beside(
    trace: Path | None, rank: int, device: torch.device, after_step: Callable[P, None]
) -> Iterator[Callable[P, None]]:
    """Writes `STEM-streams-RANK.json` beside the trace: kernels, copies and nccl of a worker's GPU in `STEPS` steps.

    Yields what to call after each step in place of `after_step`.
    """
    activities = _ACTIVITIES.get(device.type)
    if trace is None or activities is None:
        yield after_step
        return
    file = str(trace.with_name(f"{trace.stem}-streams-{rank}.json"))
    steps = schedule(skip_first=LEFT_OUT, wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(
        activities=activities, schedule=steps, on_trace_ready=lambda done: done.export_chrome_trace(file)
    ) as profiler:

        def both(*told: P.args, **named: P.kwargs) -> None:
            after_step(*told, **named)
            profiler.step()

        yield both
