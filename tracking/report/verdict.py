"""Who reaches the target accuracy soonest, in what time, and with how many bytes."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..compare import human_bytes
from ..groups import Entry, grouped
from ..run_directory import Record
from ..sources import RunData
from .curves import lived, number
from .text import shown

BROKEN = ("failed", "diverged", "damaged")


@dataclass(frozen=True)
class Reached:
    """A setting: one run, or the seeds of one trial, with their means. `seconds`: None unless all reach the target."""

    label: str
    seconds: float | None
    bytes: float | None
    reaching: int
    seeds: int


def verdicts(runs: list[RunData]) -> list[str]:
    """A sentence for each target that runs of one model and data set had; measured and modelled ones apart."""
    contests: dict[tuple[bool, str, str, float], list[RunData]] = {}
    for run in runs:
        target = number(run.summary.get("target_accuracy"))
        if target is not None:
            modelled = bool(run.summary.get("modelled"))
            key = (modelled, _name(run, "model"), _name(run, "data"), target)
            contests.setdefault(key, []).append(run)
    return [_sentence(*key, _settings(of)) for key, of in sorted(contests.items(), key=lambda item: item[0])]


def bytes_of_a_step(summary: dict[str, Any]) -> float | None:
    """Of all workers together."""
    wire = summary.get("wire")
    sent = number(wire.get("bytes_per_step")) if isinstance(wire, dict) else None
    workers = number(summary.get("workers"))
    return None if sent is None or workers is None else sent * workers


def _name(run: RunData, key: str) -> str:
    return shown(run.summary.get(key) or "?")


def _settings(runs: list[RunData]) -> list[Reached]:
    groups: dict[str, list[RunData]] = {}
    alone = [run for run in runs if run.swept is None]
    entries = [Entry((run,), {"run": run.name, "status": run.summary.get("status")}) for run in alone]
    of_run = {id(run): i for i, entry in enumerate(grouped(entries, lambda _: False)) for run in entry.runs}
    for run in runs:
        swept = run.swept
        key = (
            f"{of_run[id(run)]}"
            if swept is None
            else json.dumps([swept.sweep, swept.parameters], sort_keys=True, default=str)
        )
        groups.setdefault(key, []).append(run)
    return [_reached(group) for group in groups.values()]


def _reached(group: list[RunData]) -> Reached:
    first = group[0]
    what = f"{shown(first.name, 64)} ({_name(first, 'strategy')}, sync={_name(first, 'sync')})"
    if len(group) > 1:
        chosen = first.swept.parameters if first.swept is not None else {}
        named = ", ".join(f"{shown(key, 64)}={shown(value, 64)}" for key, value in chosen.items())
        what = f"{named or what} (mean of {len(group)} seeds)"
    times = [time for run in group if (time := _time_to_target(run)) is not None]
    sent = [sum_ for run in group if (sum_ := _bytes_to_target(run)) is not None]
    return Reached(
        what,
        sum(times) / len(times) if len(times) == len(group) else None,
        sum(sent) / len(sent) if len(sent) == len(group) else None,
        len(times),
        len(group),
    )


def _time_to_target(run: RunData) -> float | None:
    """Seconds. A run that broke afterwards is no choice."""
    if run.summary.get("status") in BROKEN:
        return None
    if "time_to_accuracy" in run.summary:
        return number(run.summary["time_to_accuracy"])
    reached = _evaluation_at_target(run)  # it has no summary: it was killed later, or goes on
    return number(reached.get("time")) if reached else None


def _bytes_to_target(run: RunData) -> float | None:
    a_step, reached = bytes_of_a_step(run.summary), _evaluation_at_target(run)
    step = number(reached.get("step")) if reached else None
    return None if step is None or a_step is None else step * a_step


def _evaluation_at_target(run: RunData) -> Record | None:
    target = number(run.summary.get("target_accuracy"))
    for record in lived(run.records):
        accuracy = number(record.get("accuracy"))
        if record.get("kind") == "evaluation" and None not in (accuracy, target):
            assert accuracy is not None and target is not None
            if accuracy >= target:
                return record
    return None


def _sentence(modelled: bool, model: str, data: str, target: float, settings: list[Reached]) -> str:
    who = "Modelled (virtual cluster)" if modelled else "Measured"
    where = f"{who}, {model} on {data}"
    whole = sorted((s for s in settings if s.seconds is not None), key=lambda s: s.seconds or 0.0)
    partly = [f"{s.label.replace('mean of ', '')}: {s.reaching}" for s in settings if 0 < s.reaching < s.seeds]
    some = f" With some of their seeds only: {_list(partly)}." if partly else ""
    if not whole:
        return f"{where}: none of {len(settings)} reaches {target:.2%}.{some}"
    best = whole[0]
    told = f"{where}: reaches {target:.2%} soonest: {best.label}, in {_seconds(best.seconds)}{_with(best)}."
    if len(whole) > 1:
        told += f" Next: {whole[1].label}, in {_seconds(whole[1].seconds)}{_with(whole[1])}."
    if known := [s for s in whole if s.bytes is not None]:
        least = min(known, key=lambda s: s.bytes or 0.0)
        if len(known) > 1 and least is not best:
            told += f" With the fewest bytes: {least.label}, {human_bytes(least.bytes or 0.0)}."
    missed = len(settings) - len(whole)
    return told + (f" {missed} of {len(settings)} never do." if missed and not partly else some)


def _list(items: Iterable[str]) -> str:
    return "; ".join(items)


def _with(setting: Reached) -> str:
    return "" if setting.bytes is None else f", with {human_bytes(setting.bytes)} sent by all workers"


def _seconds(value: float | None) -> str:
    assert value is not None
    return f"{value:,.1f} s" if value >= 10 else f"{value:.3g} s"
