"""One step of a pipeline as it was measured, beside the same step as modelled: what a run's schedule.json holds.

Shown is the step of replica 0 that took the median time, of those that are timed. With a flush it lasts from the
beginning of its first pass to the end of its last. Without one it is cut out of the steady state as the modelled one is
(Pipeline.simulate): as many steps, from one forward pass on the last stage until another, with two periods of batches
before it and one after it.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import median_low
from typing import Any, NamedTuple

from ...comm.timeline import TimedPass
from ...tracking.schedule import MOST_PASSES
from ..fabrics.layout import RunLayout
from .meters import Report

Table = dict[str, Any]  # as Timetable.as_dict()
COMPUTES = re.compile(r"(\d+)([FBIW])(\d+)")


class MeasuredWindow(NamedTuple):
    """A step, or several of a schedule without a flush."""

    begin: float
    end: float
    micro_batches: int  # that came before, and that the modelled one does not count


def beside(
    schedule: str, modelled: Table, reports: Sequence[Report], layout: RunLayout, on_a_model: bool
) -> Table | None:
    """None where no worker kept passes. `on_a_model`: the clock is that of a virtual cluster."""
    if not any(report.passes for report in reports):
        return None
    by_rank = {report.rank: report for report in reports}
    ranks = layout.mesh.along(0, "stage")
    rows = [by_rank[rank] for rank in ranks if rank in by_rank]
    found = None
    if len(rows) == len(ranks):
        windows = [*(_of_steady_state(modelled, rows[-1]) if modelled["steady"] else _of_steps(modelled, rows))]
        if windows:
            typical = median_low(window.end - window.begin for window in windows)
            found = next(window for window in windows if window.end - window.begin == typical)
    return {
        "schedule": schedule,
        "clock": "modelled" if on_a_model else "measured",
        "modelled": _bounded(modelled),
        "measured": None if found is None else _bounded(_table(modelled, rows, found)),
    }


def _of_steps(modelled: Table, rows: Sequence[Report]) -> Iterator[MeasuredWindow]:
    """Steps in which every worker made the passes of the schedule."""
    expected = [sorted(each["action"] for each in worker["actions"]) for worker in modelled["workers"]]
    steps = [{step: span for step, *span in _numbered(report)} for report in rows]
    for step in sorted(set[int].intersection(*(set(each) for each in steps))):
        made = [_within(report.passes, *each[step]) for report, each in zip(rows, steps, strict=True)]
        if [sorted(each.name for each in row) for row in made] == expected:
            passes = [each for row in made for each in row]
            yield MeasuredWindow(min(each.start for each in passes), max(each.end for each in passes), 0)


def _of_steady_state(modelled: Table, last: Report) -> Iterator[MeasuredWindow]:
    """Yields windows between forward passes of the last stage, in a stream that begins with micro-batch 0 and is long
    enough.
    """
    stage = len(modelled["stages"]) - 1
    first = next(_parse(each["action"])[2] for each in modelled["workers"][-1]["actions"] if "F" in each["action"])
    each = sum("F" in action["action"] for action in modelled["workers"][-1]["actions"])  # micro-batches in a window
    timed = last.whole(last.measured)
    forward = [(_parse(done.name)[2], done.start) for done in last.passes if done.name.startswith(f"{stage}F")]
    streams = accumulate((j == 0 for j, _ in forward), initial=0)
    starts = {(stream, j): start for stream, (j, start) in zip([*streams][1:], forward, strict=True)}
    for (stream, j), begin in starts.items():
        end, later = starts.get((stream, j + each)), starts.get((stream, j + 2 * each))
        resolved = j >= first and (j - first) % each == 0
        if resolved and end is not None and later is not None and timed and begin >= timed[0][0]:
            yield MeasuredWindow(begin, end, j - first)


def _table(modelled: Table, rows: Sequence[Report], window: MeasuredWindow) -> Table:
    begin, end, before = window
    time = end - begin
    workers: list[Table] = []
    for report in rows:
        made = [
            {
                "action": _renumbered(each.name, before),
                "start": max(each.start, begin) - begin,
                "end": min(each.end, end) - begin,
            }
            for each in report.passes
            if each.end > begin and each.start < end
        ]
        workers.append({"bubble": 1 - sum(each["end"] - each["start"] for each in made) / time, "actions": made})
    bubble = sum(worker["bubble"] for worker in workers) / len(workers)
    return {**modelled, "unit": "seconds", "time": time, "bubble": bubble, "workers": workers}


def _numbered(report: Report) -> Iterator[tuple[int, float, float]]:
    """(number, start, end) of the steps that are timed and known whole."""
    steps = report.whole(report.measured)
    for number, (start, end) in enumerate(steps, report.trained_steps - len(steps) + 1):
        yield number, start, end


def _within(passes: Sequence[TimedPass], start: float, end: float) -> list[TimedPass]:
    """`passes`: one after the other."""
    return [
        *passes[
            bisect_left(passes, start, key=lambda each: each.start) : bisect_right(
                passes, end, key=lambda each: each.end
            )
        ]
    ]


def _parse(action: str) -> tuple[int, str, int]:
    found = COMPUTES.fullmatch(action)
    assert found is not None
    return int(found[1]), found[2], int(found[3])


def _renumbered(action: str, before: int) -> str:
    stage, kind, j = _parse(action)
    return f"{stage}{kind}{j - before}"


def _bounded(table: Mapping[str, Any]) -> Table:
    """Removes the passes from a table that has more than a report takes."""
    workers = table["workers"]
    if sum(len(worker["actions"]) for worker in workers) > MOST_PASSES:
        workers = [{**worker, "actions": []} for worker in workers]
    return {**table, "workers": workers}
