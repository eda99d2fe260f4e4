"""The differences between two runs (configuration, environment, results), or between two configurations."""

import json
from dataclasses import dataclass
from typing import Any

from .columns import BY_KEY, COLUMNS, anything
from .compare import rows
from .disturbance import is_timed
from .labels import labels
from .run_data import RunData
from .run_directory import RunDirectory, read_object
from .selection import configured
from .values import finite, flat

OF_THE_RUN = ("run", "front", "runs", "others", "why")  # no results


@dataclass(frozen=True)
class ValuePair:
    """`difference`: the second less the first, of numbers; `ratio`: of the second to the first, where that is not 0.

    `disturbed`: it is a time, and other programs disturbed one of the runs.
    """

    key: str
    first: Any  # None: not known
    second: Any
    disturbed: bool = False

    @property
    def difference(self) -> float | None:
        if not (_is_number(self.first) and _is_number(self.second)):
            return None
        return self.second - self.first

    @property
    def ratio(self) -> float | None:
        return self.second / self.first if self.difference is not None and self.first else None

    def plain(self) -> dict[str, Any]:
        told = {"key": self.key, "first": self.first, "second": self.second}
        told = told if self.difference is None else {**told, "difference": self.difference, "ratio": self.ratio}
        return {**told, "disturbed": True} if self.disturbed else told

    def texts(self) -> list[str]:
        """Returns texts for people, in the column's units: key, first, second, difference, percent of the first."""
        column = BY_KEY.get(self.key)
        if column is None:
            return [self.key, anything(self.first), anything(self.second), "", ""]
        both = ["-" if value is None else column.text(value) for value in (self.first, self.second)]
        if self.difference is None or not column.is_number:
            return [column.title, *both, "", ""]
        apart = column.text(abs(self.difference))
        sign = "" if apart == column.text(0) else "+" if self.difference > 0 else "-"
        percent = f"{self.ratio - 1:+.1%}" if self.ratio is not None and self.first > 0 else ""
        blurred = "~" if self.disturbed else ""
        return [column.title, *both, blurred + sign + apart, percent and blurred + percent]


@dataclass(frozen=True)
class RunDifference:
    first: str  # the runs' names
    second: str
    configuration: list[ValuePair]  # by the keys of the command line
    environment: list[ValuePair] | None  # by the keys of environment.json; None: of one of them it was not recorded
    results: list[ValuePair]  # by the keys of columns; numbers that are the same, too

    def plain(self) -> dict[str, Any]:
        return finite(
            {
                "first": self.first,
                "second": self.second,
                "configuration": [pair.plain() for pair in self.configuration],
                "environment": None if self.environment is None else [pair.plain() for pair in self.environment],
                "results": [pair.plain() for pair in self.results],
            }
        )


def difference(first: RunData, second: RunData) -> RunDifference:
    """Returns the difference. It has no results if one of them is a configuration alone, without a summary.

    Raises CorruptRunError for a damaged environment.json.
    """
    chosen = [{key: value for key, value in configured(run).items() if key != "name"} for run in (first, second)]
    places = [environment_of(run) for run in (first, second)]
    environment = None if None in places else _differing(*(flat(place or {}, ".") for place in places))
    results = _results(first, second) if first.summary and second.summary else []
    one, other = (first.name, second.name) if first.name != second.name else labels([first, second])
    return RunDifference(one, other, _differing(*chosen), environment, results)


def _results(first: RunData, second: RunData) -> list[ValuePair]:
    one, other = rows([first, second])
    configured_keys = {"strategy", "sync", *configured(first), *configured(second)}
    keys = [column.key for column in COLUMNS if column.key not in (*OF_THE_RUN, *configured_keys)]
    loud = bool(one.get("disturbed") or other.get("disturbed"))
    pairs = [ValuePair(key, one.get(key), other.get(key), loud and is_timed(key)) for key in keys]
    weights = ValuePair("model_sha256", first.summary.get("model_sha256"), second.summary.get("model_sha256"))
    known = [pair for pair in pairs if pair.first is not None or pair.second is not None]
    return [pair for pair in known if BY_KEY[pair.key].is_number or pair.first != pair.second] + [
        pair for pair in [weights] if pair.first != pair.second
    ]


def environment_of(run: RunData) -> dict[str, Any] | None:
    """Returns the versions and the machine that a run recorded; None: nothing. Raises CorruptRunError."""
    if run.path is None:
        return None
    return read_object(RunDirectory(run.path).environment)


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[ValuePair]:
    """Returns the values that differ. 1, 1.0 and true count as different."""
    pairs = [ValuePair(key, one.get(key), other.get(key)) for key in {**one, **other}]
    return [pair for pair in pairs if json.dumps(pair.first, default=str) != json.dumps(pair.second, default=str)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
