"""Says which setting reaches the target accuracy soonest, in what time and with how many bytes, as far as seeds can
tell.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..compare import human_bytes
from ..disturbance import REPEAT
from ..evaluations import at_target
from ..figures.facts import BROKEN, aim, bytes_of_a_step, name_of, trained
from ..groups import Entry, grouped, seed_of
from ..ranking import RankedSetting, first, gap_of, order, rule_of
from ..run_data import RunData
from ..text import shown
from ..values import number

SENTENCES = 4  # of a folder with runs of many models, data sets and targets
NAMED = 4  # settings in a list
LONG = "times as long"


@dataclass(frozen=True)
class Reached:
    """A setting: one run, or the seeds of one trial, and what it took to the target."""

    time: RankedSetting
    bytes: RankedSetting
    disturbed: bool = False  # by other programs on the machine
    swept: bool = False


def verdicts(runs: list[RunData]) -> list[str]:
    """A sentence for each target that runs of one model, data set and task had; measured and modelled ones apart."""
    contests: dict[tuple[bool, str, float, str], list[RunData]] = {}
    for run in runs:
        target = number(run.summary.get("target_accuracy"))
        if target is not None:
            contests.setdefault((bool(run.summary.get("modelled")), trained(run), target, aim(run)), []).append(run)
    every = sorted(((key, _settings(of)) for key, of in contests.items()), key=lambda item: item[0])
    if len(every) > SENTENCES:
        every.sort(key=lambda item: -len(item[1]))
    said = [f"{_where(*key)}. {_sentence(settings)}" for key, settings in every[:SENTENCES]]
    left = len(every) - len(said)
    return [*said, f"{left} more combinations of model, data set and target: see the table."] if left else said


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
            else json.dumps([swept.sweep, _without_seed(swept.parameters)], sort_keys=True, default=str)
        )
        groups.setdefault(key, []).append(run)
    return [_reached(group) for group in groups.values()]


def _without_seed(parameters: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if key != "seed"}


def _reached(group: list[RunData]) -> Reached:
    run = group[0]
    label = f"{shown(run.name, 64)} ({name_of(run, 'strategy')}, sync={name_of(run, 'sync')})"
    if len(group) > 1 and run.swept is not None:
        chosen = _without_seed(run.swept.parameters)
        label = ", ".join(f"{shown(key, 64)}={shown(value, 64)}" for key, value in chosen.items()) or label
    first_of_seed = sorted(group, key=lambda each: each.summary.get("status") != "completed")  # as a row counts them
    seeds = [(str(seed_of(each)), each) for each in first_of_seed]
    return Reached(
        RankedSetting.of(label, [(seed, _time_to_target(each)) for seed, each in seeds]),
        RankedSetting.of(label, [(seed, _bytes_to_target(each)) for seed, each in seeds]),
        any(each.summary.get("disturbed") for each in group),
        any(each.swept is not None for each in group),
    )


def _time_to_target(run: RunData) -> float | None:
    """Seconds. A run that broke afterwards is no choice."""
    if run.summary.get("status") in BROKEN:
        return None
    if "time_to_accuracy" in run.summary:
        return number(run.summary["time_to_accuracy"])
    reached = at_target(run.summary, run.records)  # it has no summary: it was killed later, or goes on
    return number(reached.get("time")) if reached else None


def _bytes_to_target(run: RunData) -> float | None:
    a_step, reached = bytes_of_a_step(run.summary), at_target(run.summary, run.records)
    step = number(reached.get("step")) if reached and run.summary.get("status") not in BROKEN else None
    return None if step is None or a_step is None else step * a_step


# -- the sentences


def _where(modelled: bool, what: str, _: float, aimed: str) -> str:
    who = "Modelled (virtual cluster)" if modelled else "Measured"
    return f"{who}, {what}, {aimed}"


def _sentence(settings: list[Reached]) -> str:
    times = [setting.time for setting in settings]
    whole = order(times)
    if not whole:
        who = f"None of the {len(settings)} settings" if len(settings) > 1 else "Not one setting"
        told = f"{who} reached it{' with all of its seeds' if any(t.values for t in times) else ''}."
    elif len(settings) == 1:
        told = f"{whole[0].label} reached it {_took(settings[0])}{_seeds(whole[0])}."
    elif all(setting.seeds == 1 for setting in whole):
        told = _one_seed(settings, whole)
    elif any(setting.disturbed for setting in settings):
        told = f"{len(whole)} settings reached it, in {_range(whole, _seconds)}. None is named the soonest."
    else:
        told = _several_seeds(settings, whole)
    blurred = [setting.time.label for setting in settings if setting.disturbed]
    if blurred:
        told += f" Other programs disturbed the times of {_list(blurred)}. {REPEAT}"
    partly = [f"{t.label}: {len(t.values)} of {t.seeds}" for t in times if t.values and not t.is_whole]
    if partly:
        told += f" Reached with some of their seeds only, and not compared: {_list(partly)}."
    missed = sum(not t.values for t in times)
    if missed and whole:
        told += f" {missed} of the {len(settings)} settings did not reach it."
    return told


def _one_seed(settings: list[Reached], whole: list[RankedSetting]) -> str:
    """No winner, and no order that could be read as one."""
    count = f"{len(whole)} settings reached it" if len(whole) > 1 else f"{whole[0].label} alone reached it"
    sent = order([s.bytes for s in settings if s.time.is_whole])
    with_ = f", with {_range(sent, human_bytes)} sent by all workers" if sent else ""
    more = (
        "repeat the sweep with --seeds 3"
        if any(s.swept for s in settings)
        else "train each with seed=1 and seed=2, too"
    )
    return f"One seed each: not a ranking. {count}, in {_range(whole, _seconds)}{with_}. To compare them, {more}."


def _several_seeds(settings: list[Reached], whole: list[RankedSetting]) -> str:
    of = {id(setting.time): setting for setting in settings}
    leading = first(whole, ratio=True)
    counts = sorted({setting.seeds for setting in whole if setting.seeds > 1})
    means = f"means and 95 % intervals of {' or '.join(map(str, counts))} seeds"
    best, *near = leading
    if near:
        gaps = {time.label: gap_of(best, time, ratio=True) for time in near}
        times = _list(
            f"{time.label}, {time.text(_seconds)}"
            + (f", {gaps[time.label].text(_seconds, LONG)}" if time is not best else "")
            for time in leading
        )
        told = f"The soonest cannot be told apart ({rule_of(gaps.values())}; {means}): {times}."
    else:
        told = f"Soonest: {best.label}, {_took(of[id(best)])} ({means})."
        others = [setting for setting in whole if setting.seeds > 1 and setting is not best]
        if others:
            gap = gap_of(best, others[0], ratio=True).text(_seconds, LONG)
            told += f" Next: {others[0].label}, {_took(of[id(others[0])])}: {gap}."
    least = first([setting.bytes for setting in settings if setting.time.is_whole], ratio=True)
    if len(least) == 1 and least[0].label not in [setting.label for setting in leading]:
        told += f" Fewest bytes: {least[0].label}, {least[0].text(human_bytes)}."
    alone = sum(setting.seeds == 1 for setting in whole)
    return f"{told} {alone} with one seed only: not compared." if alone else told


def _took(setting: Reached) -> str:
    sent = f", with {setting.bytes.text(human_bytes)} sent by all workers" if setting.bytes.is_whole else ""
    return f"in {setting.time.text(_seconds)}{sent}"


def _seeds(setting: RankedSetting) -> str:
    return " (one seed)" if setting.seeds == 1 else f" (mean and 95 % interval of {setting.seeds} seeds)"


def _range(settings: list[RankedSetting], unit: Callable[[float], str]) -> str:
    low, high = (unit(setting.mean) for setting in (settings[0], settings[-1]))
    return low if low == high else f"{low} to {high}"


def _list(items: Iterable[str]) -> str:
    every = list(items)
    more = len(every) - NAMED
    return "; ".join(every[:NAMED]) + (f"; and {more} more" if more > 0 else "")


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 10 else f"{value:.3g} s"
