"""Runs that differ in their seed alone, taken together: mean and 95 % interval."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

from ..conf.groups import CONF, GROUPS
from .columns import BY_KEY, unknown
from .files import parse_yaml, read_text
from .run_data import RunData
from .summaries import Row

INTERVAL = "_ci95"  # what the key of a half width ends in
# What may differ between runs of one group, at the top of a configuration: ours, and common words for the same.
_APART = ("seed", "name", "tracking", "random_seed", "run_name", "output_dir", "log_dir", "save_dir")
_USUAL = {group.name: group.usual for group in GROUPS if group.usual}


@dataclass(frozen=True)
class Entry:
    """A row, and the runs that it tells of."""

    runs: tuple[RunData, ...]
    row: Row


def grouped(entries: Sequence[Entry], is_measured: Callable[[str], bool]) -> list[Entry]:
    """One entry for runs that differ only in seed, name, tracking and output paths; the others as they are.

    Their numbers are the mean of the completed runs, KEY_ci95 the half width of the 95 % interval by Student's t,
    `n` how many were averaged, `runs` their names, `others` the names and statuses of those that did not complete.
    A number that one of the completed runs lacks is unknown. Grouped are runs whose configurations are known and
    equal, with seeds that are known and differ; a trial of a sweep that failed before it had a configuration counts
    to its trial. Where no run completed, each is a row of its own.
    """
    sets: dict[Any, list[Entry]] = {}
    keys = _keys([entry.runs[0] for entry in entries])
    for i, (entry, key) in enumerate(zip(entries, keys, strict=True)):
        sets.setdefault(i if key is None else key, []).append(entry)
    together: dict[int, list[Entry]] = {}
    for members in sets.values():
        for part in _parts(members):
            together[id(part[0])] = part
    parts = [together[id(entry)] for entry in entries if id(entry) in together]
    names = _names([[str(entry.row["run"]) for entry in part] for part in parts])
    if all(len(part) == 1 for part in parts):
        return list(entries)
    return [
        part[0] if len(part) == 1 else _joined(part, name, is_measured) for part, name in zip(parts, names, strict=True)
    ]


def _keys(runs: list[RunData]) -> list[str | None]:
    """Returns a key that all runs of a group share; None if nothing is known of a run."""
    keys: list[str | None] = []
    of_trial: dict[tuple[str, int], str] = {}
    for run in runs:
        known = bool(run.config) and seed_of(run) is not None
        config = {key: value for key, value in run.config.items() if key not in _APART and not _is_usual(key, value)}
        key = json.dumps([config, bool(run.summary.get("modelled"))], sort_keys=True, default=str) if known else None
        keys.append(key)
        if run.swept and key is not None:
            of_trial.setdefault((run.swept.sweep, run.swept.trial), key)
    return [
        of_trial.get((run.swept.sweep, run.swept.trial)) if key is None and run.swept and not run.config else key
        for run, key in zip(runs, keys, strict=True)
    ]


def _is_usual(key: str, value: Any) -> bool:
    """Returns whether it is the value that runs had before the group existed, whose configurations lack the key."""
    return (key == "callbacks" and not value) or (key in _USUAL and value == _usual_choice(key))


@cache
def _usual_choice(group: str) -> dict[str, Any]:
    name = str(_USUAL[group])
    content = parse_yaml(read_text(CONF / group / f"{name}.yaml"))
    return {"name": name, "target": content.pop("_target_"), "knobs": content}


def seed_of(run: RunData) -> Any:
    """None: it is not known."""
    seeds = (run.config.get("seed"), run.config.get("random_seed"), run.swept.seed if run.swept else None)
    return next((seed for seed in seeds if seed is not None), None)


def _parts(members: list[Entry]) -> list[list[Entry]]:
    """Runs of different seeds, and each that repeats a seed by itself: no second draw. Completed ones come first."""
    completed = [entry for entry in members if entry.row["status"] == "completed"]
    if not completed:
        return [[entry] for entry in members]
    group: dict[Any, Entry] = {}
    alone: list[list[Entry]] = []
    for entry in [*completed, *(entry for entry in members if entry.row["status"] != "completed")]:
        seed = str(seed_of(entry.runs[0]))
        if seed in group:
            alone.append([entry])
        else:
            group[seed] = entry
    order = {id(entry): i for i, entry in enumerate(members)}
    return [sorted(group.values(), key=lambda entry: order[id(entry)]), *alone]


def _joined(part: list[Entry], name: str, is_measured: Callable[[str], bool]) -> Entry:
    done = [entry.row for entry in part if entry.row["status"] == "completed"]
    row: Row = {}
    for key in done[0]:
        values = [row[key] for row in done]
        if is_measured(key):
            row[key], half = mean(values)
            if half is not None:
                row[key + INTERVAL] = half
        else:
            row[key] = _listed(values)
    others = [
        f"{entry.row['run']} ({entry.row['status'] or 'unknown'})"
        for entry in part
        if entry.row["status"] != "completed"
    ]
    reasons = [entry.row["why"] for entry in part if entry.row.get("why")]
    row |= {"run": name, "n": len(done), "runs": [row["run"] for row in done], "others": others}
    return Entry(tuple(run for entry in part for run in entry.runs), row | {"why": reasons[0] if reasons else None})


def mean(values: Sequence[Any]) -> tuple[Any, float | None]:
    """Mean and half width of its 95 % interval, t(0.975, n - 1) s / sqrt(n); None where it cannot be told."""
    if any(not isinstance(value, int | float) or isinstance(value, bool) for value in values):
        return None, None
    if len(values) == 1 or all(value == values[0] for value in values):
        return values[0], 0.0 if len(values) > 1 else None
    n = len(values)
    try:
        centre = math.fsum(values) / n
        if unknown(centre) or math.isinf(centre):
            return centre, None
        deviation = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (n - 1))
    except OverflowError:  # of values near the largest that there is
        return None, None
    return centre, (t975(n) or 0.0) * deviation / math.sqrt(n)


@cache
def t975(n: int) -> float | None:
    """t(0.975, n - 1), for the interval of a mean of n; None where there is none."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975)) if n > 1 else None


def _listed(values: list[Any]) -> Any:
    """Returns what all runs have that have any; in words if they differ."""
    known = [value for value in values if not unknown(value)]
    if all(value == known[0] for value in known):
        return known[0] if known else None
    return ", ".join(dict.fromkeys(map(str, known)))


def _names(groups: list[list[str]]) -> list[str]:
    """Names each group by the longest common beginning of its runs' names, up to a whole word, or by the first name if
    that says nothing.
    """
    stems = [_stem(names) for names in groups]
    times = Counter(stems)
    alone = {names[0] for names in groups if len(names) == 1}
    return [
        stem if stem and times[stem] == 1 and stem not in alone else names[0]
        for stem, names in zip(stems, groups, strict=True)
    ]


def _stem(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    prefix = "".join(chars[0] for chars in takewhile(lambda chars: len(set(chars)) == 1, zip(*names, strict=False)))
    if any(len(name) > len(prefix) and name[len(prefix)] not in "-_." for name in names):
        prefix = re.sub(r"(^|[-_.])[^-_.]*$", "", prefix)
    return prefix.rstrip("-_.")


def uniform(table: list[Row]) -> list[Row]:
    """Every row with every key that one of them has: the columns in their order, a run's own behind `workers`."""
    if any("n" in row for row in table):
        table = [{"n": 1, "runs": [row["run"]], "others": []} | row for row in table]
    there = dict.fromkeys(key for row in table for key in row)
    own = [key for key in there if key not in BY_KEY and not _is_interval(key, there)]
    order: list[str] = []
    for key in BY_KEY:
        order += [key] if key in there else []
        order += own if key == "workers" else []
    order = [each for key in order for each in (key, key + INTERVAL) if each in there]
    return [{key: row.get(key) for key in order} for row in table]


def _is_interval(key: str, keys: dict[str, Any]) -> bool:
    return key.endswith(INTERVAL) and key.removesuffix(INTERVAL) in keys
