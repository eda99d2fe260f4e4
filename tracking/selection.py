"""Selects the rows and columns of a comparison: values by name, conditions, the Pareto front."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .columns import BY_KEY, TO_TARGET, TRAINED, known, no_column, titled, unknown
from .disturbance import is_timed
from .errors import TableError
from .run_data import RunData
from .summaries import Row, Summary, task_metric
from .values import number

Merits = tuple[float, ...]  # of a row, larger is better

_CONDITION = re.compile(r"([^<>=!]+)(<=|>=|!=|==|=|<|>)(?![<>=])(.*)", re.DOTALL)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def configured(run: RunData) -> dict[str, Any]:
    """Returns the run's choices by the keys of the command line (`sync`, `optimizer.lr`), those of a sweep last.

    `hardware.workers` is how many there were, where the configuration leaves it to the machine.
    """
    flat = _flat(run.config)
    if "hardware.workers" in flat and flat["hardware.workers"] is None:
        flat["hardware.workers"] = run.summary.get("workers")
    return flat | run.swept.parameters if run.swept else flat


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and {"name", "target", "knobs"} == value.keys() and isinstance(value["knobs"], dict):
            flat[path] = value["name"]
            flat |= _flat(value["knobs"], f"{path}.")
        elif isinstance(value, dict):
            flat |= _flat(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def logged(run: RunData, name: str) -> Any:
    """W&B's own summary value of this name; `a.b` finds what was logged as {"a": {"b": 1}}.

    Else the metric of the task or of a callback.
    """
    found = run.extra.get(name, run.extra.get(name.replace(".", "/")))
    return measured(run.summary).get(name) if found is None else found


def measured(summary: Summary) -> dict[str, float]:
    """Returns the last value of each metric without a column: the task's, then those of callbacks."""
    metric = task_metric(summary)
    told = {} if metric is None else {metric.name: summary.get(metric.name)}
    of_callbacks = summary.get("metrics")
    told |= of_callbacks if isinstance(of_callbacks, dict) else {}
    return {name: value for name, each in told.items() if name not in BY_KEY and (value := number(each)) is not None}


def larger_first(summaries: Iterable[Summary]) -> dict[str, bool]:
    """Returns for each metric of a task that has no column whether larger is better, if the runs agree on it."""
    told: dict[str, set[bool | None]] = {}
    for metric in filter(None, map(task_metric, summaries)):
        told.setdefault(metric.name, set()).add(metric.larger_is_better)
    return {name: True in each for name, each in told.items() if each in ({True}, {False})}


@dataclass(frozen=True)
class Names:
    """Resolves the words of a comparison: columns of its table, or keys of the runs' own."""

    columns: frozenset[str]  # keys of the table's rows
    chosen: frozenset[str]  # keys of configurations
    logged: frozenset[str]  # W&B's own, and metrics of tasks and callbacks
    larger_first: Mapping[str, bool] = field(default_factory=dict[str, bool])  # of `logged`, where it is known

    @classmethod
    def of(cls, runs: Sequence[RunData], columns: frozenset[str]) -> "Names":
        chosen = frozenset(key for run in runs for key in configured(run))
        own = {key for run in runs if run.path is None for key in run.extra}
        summaries = [run.summary for run in runs]
        return cls(columns, chosen, frozenset(own.union(*map(measured, summaries))), larger_first(summaries))

    def key(self, name: str, is_ranked: bool = False) -> str:
        """The key that `name` (a key, a short name or a heading) stands for. Raises TableError, naming the nearest.

        A short name gives way to a configuration's key (`optimizer`), unless better and worse are meant (`is_ranked`).
        """
        column = known(name)
        if column is not None and column.key in self.columns and (is_ranked or name == column.key):
            return column.key
        if name in self.chosen:
            return name
        if column is not None and column.key in self.columns:
            return column.key
        if name in self.logged or name.replace(".", "/") in self.logged:
            return name
        if (column := titled(name, self.columns)) is not None:
            return column.key
        raise no_column(name, [*(key for key in BY_KEY if key in self.columns), *sorted(self.chosen | self.logged)])

    def is_measured(self, key: str) -> bool:
        """Returns whether seeds differ in it by nature, so that a group has a mean of it."""
        return BY_KEY[key].is_number and key != "workers" if key in BY_KEY else key not in self.chosen

    def value(self, run: RunData, key: str) -> Any:
        """Returns the run's value of a key that is no column."""
        return configured(run).get(key) if key in self.chosen else logged(run, key)


@dataclass(frozen=True)
class Condition:
    """`workers>=4`: what a row must fulfil. `key` is as `Names.key` gives it."""

    key: str
    operator: str
    value: Any

    @classmethod
    def parse(cls, text: str, names: Names) -> "Condition":
        """Raises TableError."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise TableError(f"--where {text}: must be NAME, one of = != < <= > >=, and a value, such as workers>=4")
        name, operator, value = (part.strip() for part in match.groups())
        key = names.key(name)
        if operator in _ORDER:
            if key in BY_KEY and not BY_KEY[key].is_number:
                raise TableError(f"--where {text}: {name} holds text; it takes = and != only")
            if not isinstance(_value(value), int | float):
                raise TableError(f"--where {text}: {operator} takes a number, such as {name}{operator}4")
        return cls(key, "=" if operator == "==" else operator, _value(value))

    def holds(self, value: Any) -> bool:
        """An unknown value fulfils `!=` alone."""
        if self.operator in ("=", "!="):
            return _equal(value, self.value) == (self.operator == "=")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return _ORDER[self.operator](value, self.value)


def _value(text: str) -> Any:
    """`90%` is 0.9; true, false and null are themselves, and what is no number is text."""
    words = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return text


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool) or value is None:
        return value is wanted or (wanted is None and value == "none")  # stragglers=none is a choice's name
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return math.isclose(value, wanted, rel_tol=1e-9)
    if wanted is None:
        return value == "none"
    if isinstance(value, str) and isinstance(wanted, int | float):
        return _value(value) == wanted
    return str(value) == str(wanted)


def directions(words: Sequence[str], names: Names) -> dict[str, bool]:
    """The keys that `--pareto` means, each with whether larger is better. Raises TableError."""
    keys = {names.key(word, is_ranked=True): word for word in words}
    known = {key: BY_KEY[key].larger_first for key in BY_KEY if key in names.columns and BY_KEY[key].is_number}
    known |= names.larger_first
    for key, word in keys.items():
        if key not in known:
            usable = ", ".join(BY_KEY[each].short or each if each in BY_KEY else each for each in known)
            raise TableError(f"--pareto {word}: it is not known which way {word} is better; there are {usable}")
    return {key: known[key] for key in keys}


def aim_of(keys: Iterable[str], target: Any) -> Any:
    """Returns the target that runs must share for these columns to be compared; None: they need not share it."""
    if not any(key in TO_TARGET for key in keys):
        return None
    return float(target) if isinstance(target, int | float) else target


def mark_front(table: list[Row], larger: dict[str, bool], targets: Sequence[Any] = ()) -> None:
    """Sets `front` to `*` in the rows that no other is at least as good as everywhere and better somewhere.

    Compared are completed runs with every value known, of one model, data set and task, modelled with modelled; what
    it took to a target only between runs of one (`targets`: each row's target_accuracy).

    Where other programs disturbed a time that is compared, `~*` marks the front as measured, and `~` the disturbed
    rows beside it: without the disturbance they may be on it.
    """
    contests: dict[str, list[tuple[Merits, Row]]] = {}
    for row, target in zip(table, targets or [None] * len(table), strict=True):
        row["front"] = None
        if row["status"] in ("completed", None) and not any(unknown(row[key]) for key in larger):
            contest = json.dumps([*map(row.get, TRAINED), row["modelled"], aim_of(larger, target)], default=str)
            merits = tuple(row[key] if better else -row[key] for key, better in larger.items())
            contests.setdefault(contest, []).append((merits, row))
    for judged in contests.values():
        front: list[Merits] = []
        # who is dominated is so by one of the front, which comes before
        for merits, row in sorted(judged, key=lambda each: each[0], reverse=True):
            if not any(_dominates(best, merits) for best in front):
                row["front"] = "*"
                front += [] if front[-1:] == [merits] else [merits]
        if any(map(is_timed, larger)) and any(row.get("disturbed") for _, row in judged):
            for _, row in judged:
                row["front"] = "~*" if row["front"] else "~" if row.get("disturbed") else None


def _dominates(one: Merits, other: Merits) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
