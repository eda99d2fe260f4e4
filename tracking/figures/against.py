"""Figures over parameters: what is asked for (request.py), of the runs that there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..columns import BY_KEY, unknown
from ..errors import TableError
from ..glossary import MEANINGS
from ..run_data import RunData
from ..selection import Names
from ..text import plain, shown
from ..values import number
from .facts import Plain, finite, is_modelled
from .palette import look_of_points
from .request import OPTION, FigureRequest, Name
from .spec import Against, Axis, PlotPoint, PlotTrace, Unit

TITLES = {
    "time_to_accuracy_s": "time to accuracy, s",
    "throughput_samples_per_s": "samples/s",
    "bytes_per_step": "bytes a step",
    "updates_per_second": "updates/s",
}
ENDINGS = {"_mib": "MiB", "_ms": "ms", "_s": "s"}  # of a column's key, and its unit


def against(
    runs: Sequence[RunData], rows: Sequence[Plain], settings: Sequence[Sequence[int]], request: FigureRequest
) -> list[Against]:
    """One of the measured runs, one of the modelled ones, without those that have nothing to show. Raises TableError.

    `rows`: of a comparison, a run each; `settings`: the places of runs that differ in their seed alone.
    """
    try:
        read = _Read.of(runs, rows, request)
    except TableError as error:
        raise TableError(f"{OPTION} {request.text}: {error}") from None
    found = [
        _figure(read, [places for places in settings if is_modelled(runs[places[0]]) == modelled], modelled)
        for modelled in (False, True)
    ]
    return [figure for figure in found if figure.traces]


@dataclass(frozen=True)
class _Read:
    runs: Sequence[RunData]
    rows: Sequence[Plain]
    request: FigureRequest
    names: Names
    keys: dict[str, str]  # of the request's words

    @classmethod
    def of(cls, runs: Sequence[RunData], rows: Sequence[Plain], request: FigureRequest) -> "_Read":
        names = Names.of(runs, frozenset(BY_KEY))
        words = {word for name in (request.x, *request.y, *request.lines) for word in name}
        read = cls(runs, rows, request, names, {word: names.key(word, is_ranked=True) for word in sorted(words)})
        for name in request.y:
            values = [read.value(place, name) for place in range(len(runs))]
            if any(not unknown(value) and number(value) is None for value in values):
                raise TableError(f"y={'|'.join(name)} holds text; y must be a number")
        return read

    def value(self, place: int, name: Name) -> Any:
        for word in name:
            key = self.keys[word]
            value = self.rows[place].get(key) if key in BY_KEY else self.names.value(self.runs[place], key)
            if not unknown(value):
                return value
        return None

    def is_measured(self, name: Name) -> bool:
        return any(self.names.is_measured(self.keys[word]) for word in name)

    def axis(self, name: Name) -> Axis:
        key = self.keys[name[0]]
        title = " or ".join(_title(self.keys[word]) for word in name)
        return Axis(title, title, "bytes" if key == "bytes_per_step" else unit_of(key), log=name in self.request.log)


def unit_of(key: str) -> Unit:
    """Returns the unit of a column: shares are drawn in percent."""
    return "share" if key in MEANINGS and MEANINGS[key][0] == "share" else ""


def _title(key: str) -> str:
    if key in TITLES or key not in MEANINGS:
        return TITLES.get(key, shown(key))
    ending = next((ending for ending in ENDINGS if key.endswith(ending)), "")
    words = key.removesuffix(ending).replace("_", " ")
    return f"{words}, {ENDINGS[ending]}" if ending else words


def _figure(read: _Read, settings: list[Sequence[int]], modelled: bool) -> Against:
    request = read.request
    traces: dict[str, list[PlotPoint]] = {}
    for places in settings:
        x = _x(read, places)
        values = tuple(tuple(_completed(read, place, y) for place in places) for y in request.y)
        if x is not None and any(value is not None for of_panel in values for value in of_panel):
            label = _label(read, places[0])
            traces.setdefault(label, []).append(PlotPoint(x, tuple(places), values))
    in_numbers = all(isinstance(point.x, float) for points in traces.values() for point in points)
    drawn = tuple(
        PlotTrace(label, look_of_points(number), tuple(_ordered(points, in_numbers)))
        for number, (label, points) in enumerate(traces.items())
    )
    joined = in_numbers and not read.is_measured(request.x)
    panels = tuple(map(read.axis, request.y))
    return Against(request.name, read.axis(request.x), panels, drawn, joined, modelled)


def _label(read: _Read, place: int) -> str:
    """Returns the label of a run's line: a single word by itself, and numbers or several values with their names."""
    values = [(name[0].rpartition(".")[2], read.value(place, name)) for name in read.request.lines]
    known = [(name, value) for name, value in values if value is not None]
    if len(known) == 1 and len(values) == 1 and (isinstance(known[0][1], bool) or finite(known[0][1]) is None):
        return shown(plain(known[0][1]))
    return ", ".join(f"{name} {f'{v:g}' if isinstance(v, float) else shown(plain(v))}" for name, v in known)


def _ordered(points: list[PlotPoint], in_numbers: bool) -> list[PlotPoint]:
    if in_numbers:
        return sorted(points, key=lambda point: float(point.x))
    return [PlotPoint(p.x if isinstance(p.x, str) else f"{p.x:g}", p.runs, p.values) for p in points]


def _x(read: _Read, places: Sequence[int]) -> float | str | None:
    """Returns the setting's value on the x axis. A measured value is the mean of its seeds, without infinite ones."""
    is_measured = read.is_measured(read.request.x)
    values = [value for place in places if (value := read.value(place, read.request.x)) is not None]
    if is_measured:
        values = [value for value in values if number(value) is None or finite(value) is not None]
    numbers = [known for value in values if (known := finite(value)) is not None]
    if not values:
        return None
    if len(numbers) < len(values):
        return shown(plain(values[0]))
    return sum(numbers) / len(numbers) if is_measured else numbers[0]


def _completed(read: _Read, place: int, y: Name) -> float | None:
    """A setting with a seed that broke, or never got there, has no point: the others' mean would flatter it."""
    return finite(read.value(place, y)) if read.runs[place].summary.get("status") == "completed" else None
