"""The figures of some runs: a comparison's picture files, and the sections of its report."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ..columns import BY_KEY, MEMORY_KINDS, TIMED, Column, known
from ..errors import TableError
from ..run_data import RunData
from ..text import plain, shown
from .against import against, unit_of
from .curves import ACCURACY, R2, TEST_LOSS, TRAINING_LOSS, Curve, curves_of
from .facts import (
    BROKEN,
    STEP_PARTS,
    aim,
    by_kind,
    bytes_of_a_step,
    finite,
    is_modelled,
    label_of,
    labels_of,
    own_columns,
    parameters,
    row_of,
    section,
    seeds_of,
    settings_of,
    swept_keys,
    trained,
)
from .palette import LIGHT, MEMORY_COLOURS, STEP_COLOURS, look
from .request import OPTION, FigureRequest
from .spec import (
    Axis,
    Coordinates,
    Drawn,
    Figure,
    Histogram,
    Line,
    Lines,
    PlotRow,
    PlotSetting,
    Ranking,
    Remark,
    RowPlot,
    Section,
    Series,
    Sheet,
)

Numbered = list[tuple[int, RunData]]  # runs with their places
FIRST_METRICS = (ACCURACY, R2, TRAINING_LOSS, TEST_LOSS)
OTHER_METRICS = 20  # of foreign runs there may be hundreds
TIME = Axis("time", "training time, s", key="time")
EPOCHS = Axis("epochs", "epochs", key="epoch")
BYTES = Axis("bytes", "bytes sent by all workers", "bytes", "bytes")
STEPS = Axis("steps", "steps of a worker", key="step", pictured=False)
# What settings are ranked by, if it is known; the names are for people.
MEASURES = {
    "time_to_accuracy_s": "time to accuracy, s",
    "accuracy": "accuracy",
    "r2": "R^2",
    "loss": "loss",
    "throughput_samples_per_s": "samples/s",
    "bytes_per_step": "bytes a step",
}
TRADED = ("megabytes", "dollars", "staleness_mean", "consensus_distance")  # columns that accuracy is drawn against
MEBI = 1 / 2**20
# The guides of sections, by their ids.
GUIDES = {
    "ranking": "Which setting is best? To separate settings that overlap, repeat the sweep with --seeds 5.",
    "accuracy": "How does each setting get there? To see one run alone: paceline show RUN.",
    "loss": "Does training converge? To see one run alone: paceline show RUN.",
    "step": "What does a step wait for? For the messages of a sync mode: paceline explain sync=NAME.",
    "memory": "What fills a worker? To try other settings before a run: paceline plan OVERRIDES.",
    "bytes": "Does each run send what was predicted? For the formula: paceline explain sync=NAME.",
}
GUIDES_WITHOUT_SWEEP = {
    "ranking": "Which run is best? To compare settings, train each with several seeds: seed=1, seed=2.",
}
MOST_LABELS = 16  # that bars are made of


@dataclass(frozen=True)
class Read:
    """Runs, and what is read of each, once."""

    runs: list[RunData]
    rows: list[dict[str, Any]]  # as of a comparison
    curves: list[dict[str, Curve]]
    own: dict[str, Column]  # of metrics of tasks and callbacks
    judged: str  # the key of a column

    def column(self, key: str) -> Column:
        return BY_KEY.get(key) or self.own[key]


def sheet_of(runs: Sequence[RunData], metric: str | None = None, requests: Sequence[FigureRequest] = ()) -> Sheet:
    """Every figure of these runs, and those that are asked for. Raises TableError where they lack what is asked for.

    `metric`: the column, or its short name, that they are judged by.
    """
    every = list(runs)
    rows = [row_of(run) for run in every]
    own = own_columns(every, rows)
    read = Read(every, rows, [curves_of(run) for run in every], own, judged_by(rows, metric, own))
    groups = seeds_of(every)
    numbers = settings_of([places for _, places in groups], len(every))
    drawn = [
        Drawn(shown(run.name), label_of(run), look(number), is_modelled(run))
        for run, number in zip(every, numbers, strict=True)
    ]
    alone = [[place] for place in range(len(every)) if not any(place in places for _, places in groups)]
    settings = sorted([*(places for _, places in groups), *alone])
    asked = [figure for request in requests for figure in against(every, rows, settings, request)]
    wanted = Section("parameters", "Against what was chosen", tuple(asked))
    traded = _traded(read, settings)
    sections = [
        *(_ranking(read), wanted, *_curves(read), traded, *_bars(every)),
        *(_staleness(every), _swept(read), _others(read)),
    ]
    guides = GUIDES if any(run.swept for run in every) else GUIDES | GUIDES_WITHOUT_SWEEP
    guided = tuple(replace(s, guide=guides.get(s.id, "")) for s in sections if s.figures)
    return Sheet(tuple(drawn), tuple(_settings(every, drawn, groups)), guided)


def _settings(runs: list[RunData], drawn: list[Drawn], groups: list[tuple[str, list[int]]]) -> Iterator[PlotSetting]:
    """Yields the settings in the order of their first runs. A run that did not complete is a setting by itself."""
    of = {place: (label, places) for label, places in groups for place in places}
    done = [run.summary.get("status") == "completed" for run in runs]
    for place, run in enumerate(drawn):
        label, places = of.get(place, (run.label, [place]))
        members = tuple(other for other in places if done[other])
        if not done[place] or place not in of:
            yield PlotSetting(run.label, (place,))
        elif members[0] == place:
            yield PlotSetting(label, members)


def _of_kinds(runs: Sequence[RunData]) -> Iterator[tuple[bool, Numbered]]:
    """Measured and modelled runs, which are never in one figure."""
    for modelled in (False, True):
        found = [(place, run) for place, run in enumerate(runs) if is_modelled(run) == modelled]
        if found:
            yield modelled, found


# -- curves


def _curves(read: Read) -> Iterator[Section]:
    yield Section("accuracy", "Accuracy", tuple(_lines(read, [ACCURACY])))
    yield Section("r2", "R\u00b2", tuple(_lines(read, [R2])))
    yield Section("loss", "Loss", tuple(_lines(read, [TRAINING_LOSS, TEST_LOSS])))


def _others(read: Read) -> Section:
    names = dict.fromkeys(name for curves in read.curves for name in curves if name not in FIRST_METRICS)
    return Section("others", "Other metrics", tuple(_lines(read, list(names)[:OTHER_METRICS])))


def _lines(read: Read, metrics: list[str]) -> Iterator[Lines]:
    for metric in metrics:
        scored = metric in (ACCURACY, R2)
        title = {ACCURACY: "accuracy, %", R2: "R^2"}.get(metric, shown(metric))
        y = Axis(shown(metric), title, unit_of(metric))
        for modelled, some in _of_kinds(read.runs):
            lines = tuple(
                Line(place, replace(curve, bytes_per_step=finite(bytes_of_a_step(run.summary))), _target(run))
                for place, run in some
                if (curve := read.curves[place].get(metric)) is not None
            )
            if lines:
                axes = tuple(
                    x
                    for x in (TIME, EPOCHS, BYTES, STEPS)
                    if any(line.curve.along(x.key) is not None for line in lines)
                )
                yield Lines(y.name, y, axes, lines, modelled, pictured=scored, aimed=scored)


def _target(run: RunData) -> float | None:
    return finite(run.summary.get("target_accuracy"))


# -- a row a run


def _bars(runs: list[RunData]) -> Iterator[Section]:
    for section_id, title, build in (
        ("throughput", "", _throughput),
        ("step", "Where a step's time goes", _step),
        ("predicted-step", "A step: predicted and measured", _predicted_step),
        ("memory", "Memory by kind", _memory),
        ("bytes", "Bytes sent: predicted and measured", _bytes),
        ("labels", "Labels by replica", _labels),
    ):
        figures = [build(some, modelled) for modelled, some in _of_kinds(runs)]
        yield Section(section_id, title, tuple(figure for figure in figures if figure is not None))


def _labels(runs: Numbered, modelled: bool) -> RowPlot | None:
    """A row for each replica of runs whose replicas own samples; many labels would be no picture."""
    tables = [(place, labels_of(run.summary)) for place, run in runs]
    tables = [(place, table) for place, table in tables if table and len(table[0]) <= MOST_LABELS]
    if not tables:
        return None
    width = max(len(table[0]) for _, table in tables)
    rows = [
        PlotRow(place, (*map(float, row), *[None] * (width - len(row))), f", replica {k}")
        for place, table in tables
        for k, row in enumerate(table)
    ]
    series = tuple(Series(f"label {i}", i % len(LIGHT), hatched=i >= len(LIGHT)) for i in range(width))
    says = "How many samples of each label each replica of {runs} trains on."
    return RowPlot("labels", Axis("samples", "samples"), series, tuple(rows), says, modelled=modelled, pictured=False)


def _throughput(runs: Numbered, modelled: bool) -> RowPlot | None:
    rows = [(place, finite(run.summary.get("throughput"))) for place, run in runs]
    known_rows = tuple(PlotRow(place, (rate,)) for place, rate in rows if rate is not None)
    axis = Axis("throughput", "samples/s of all workers")
    series = (Series("throughput", 0, legend=False),)
    return RowPlot("throughput", axis, series, known_rows, "", modelled=modelled) if known_rows else None


def _step(runs: Numbered, modelled: bool) -> RowPlot | None:
    rows: list[PlotRow] = []
    for place, run in runs:
        told = section(run.summary, "step_time")
        parts = [finite(told.get(part)) for part in STEP_PARTS]
        if any(part is not None for part in parts):
            times = [part or 0.0 for part in parts]
            outside = 100 * (times[1] + times[2]) / (sum(times) or 1.0)
            rows.append(
                PlotRow(place, tuple(None if part is None else 1e3 * part for part in parts), "", round(outside))
            )
    series = tuple(Series(part, STEP_COLOURS[part]) for part in STEP_PARTS)
    says = "Compute, communication and waiting of {runs}."
    remark = Remark("The largest share outside compute: {run}, {most} %.")
    axis = Axis("step-time", "median step, ms", "ms")
    if not rows:
        return None
    return RowPlot("step-time", axis, series, tuple(rows), says, remark, lacking="too short", modelled=modelled)


def _predicted_step(runs: Numbered, modelled: bool) -> RowPlot | None:
    """Returns the predicted and the measured time of a step, for runs that have a prediction."""
    rows: list[PlotRow] = []
    for place, run in runs:
        estimated = finite(run.summary.get("predicted_step_ms"))
        median = finite(section(run.summary, "step_time").get("median"))
        measured = None if median is None else 1e3 * median
        if estimated is not None:
            rows.append(PlotRow(place, (measured, estimated), "", _off(estimated, measured)))
    series = (Series("measured", 0, "dot"), Series("predicted", 1, "diamond"))
    says = "The time of a step of {runs}: a dot measured (median), an open diamond predicted."
    remark = Remark("{count} not as predicted, by at most {most} %.", "Each as predicted, where both are known.", 1e-4)
    axis = Axis("predicted-step", "step, ms", "ms")
    return RowPlot("predicted-step", axis, series, tuple(rows), says, remark, modelled=modelled) if rows else None


def _memory(runs: Numbered, modelled: bool) -> RowPlot | None:
    """Measured above, predicted below, in one row; host kinds hatched. A parameter server has a row of its own."""
    rows: list[PlotRow] = []
    for place, run in runs:
        held, of_server = (by_kind(section(run.summary, key)) for key in ("memory", "server_memory"))
        predicted = by_kind(section(section(run.summary, "predicted"), "memory"))
        if held or predicted:
            rows.append(PlotRow(place, (*_mebibytes(held), *_mebibytes(predicted))))
            if of_server:
                rows.append(PlotRow(place, (*_mebibytes(of_server), *_mebibytes(None)), ", server"))
    both = (
        Series(
            kind.replace("_", " "),
            MEMORY_COLOURS[kind.removeprefix("host_")],
            layer=int(predicted),
            pale=predicted,
            hatched=kind.startswith("host_"),
            asked="with other (temporaries, runtime)" if kind == "other" else "",
            legend=not predicted,
        )
        for predicted in (False, True)
        for kind in MEMORY_KINDS
    )
    says = (
        "Peak bytes of the largest worker by kind, {runs}. Upper bar: measured; lower, paler bar: predicted. "
        "Hatched: on the host, beside a device."
    )
    axis = Axis("memory", "MiB of the largest worker", "MiB")
    if not rows:
        return None
    return RowPlot("memory", axis, tuple(both), tuple(rows), says, note="pale: predicted", modelled=modelled)


def _mebibytes(held: list[float | None] | None) -> list[float | None]:
    return [None if count is None else count * MEBI for count in held or [None] * len(MEMORY_KINDS)]


def _bytes(runs: Numbered, modelled: bool) -> RowPlot | None:
    rows: list[PlotRow] = []
    for place, run in runs:
        measured = finite(section(run.summary, "wire").get("bytes_per_step"))
        predicted = finite(section(run.summary, "predicted").get("bytes_per_step"))
        if measured is not None or predicted is not None:
            rows.append(PlotRow(place, (measured, predicted), "", _off(measured, predicted)))
    series = (Series("measured", 0, "dot"), Series("predicted", 1, "diamond"))
    says = "Bytes a worker and step of {runs}: a dot measured, an open diamond predicted."
    remark = Remark("{count} not as predicted, by at most {most} %.", "Each as predicted, where both are known.", 1e-4)
    axis = Axis("bytes", "bytes that a worker sends in a step", "bytes")
    return RowPlot("bytes", axis, series, tuple(rows), says, remark, modelled=modelled) if rows else None


def _off(measured: float | None, predicted: float | None) -> float:
    """Returns the error of the prediction in percent."""
    if measured is None or predicted is None:
        return 0.0
    return 100 * abs(measured / (predicted or 1.0) - (1.0 if predicted else 0.0))


# -- accuracy against what it takes


def _traded(read: Read, settings: list[list[int]]) -> Section:
    """Returns trade-offs for the model and data that most runs have. Each strategy with its sync mode is a family, with
    a marker.
    """
    title = "Accuracy against bytes, dollars, staleness and consensus"
    counts = Counter(trained(run) for run in read.runs)
    most = max(counts, key=lambda each: counts[each], default="")
    some = [places for places in settings if trained(read.runs[places[0]]) == most]
    figures: list[Figure] = []
    for metric in ("accuracy", "r2"):
        if not any(finite(read.rows[places[0]].get(metric)) is not None for places in some):
            continue
        for taken in TRADED:
            request = FigureRequest.parse(f"x={taken} y={metric} line=strategy,sync")
            found = against(read.runs, read.rows, some, request)
            figures += [replace(each, pictured=False) for each in found if sum(len(t.points) for t in each.traces) > 1]
    return Section("traded", title, tuple(figures))


# -- staleness, rankings, what was swept


def _staleness(runs: list[RunData]) -> Section:
    x = Axis("staleness", "staleness: others' updates between fetch and push")
    y = Axis("share", "share of updates", "share")
    figures: list[Figure] = []
    for modelled, some in _of_kinds(runs):
        pairs = [(place, _pairs(section(section(run.summary, "staleness"), "histogram"))) for place, run in some]
        found = [(place, counts) for place, counts in pairs if counts]
        if found:
            places, counts = zip(*found, strict=True)
            figures.append(Histogram("staleness", x, y, places, counts, modelled))
    return Section("staleness", "Staleness", tuple(figures))


def _pairs(histogram: dict[str, Any]) -> tuple[tuple[float, float], ...]:
    pairs = [(key, finite(times)) for key, times in histogram.items()]
    return tuple(sorted((float(key), times) for key, times in pairs if times is not None and str(key).isdecimal()))


def judged_by(rows: list[dict[str, Any]], metric: str | None, own: Mapping[str, Column]) -> str:
    """The key of a column; without a metric, the time to the accuracy, if it is known. `own`: as of `own_columns`."""
    column = known(metric) or own.get(metric) if metric else None
    if column is not None and column.is_number:
        return column.key
    return next((key for key in MEASURES if any(row.get(key) is not None for row in rows)), "accuracy")


def _measures(read: Read) -> list[tuple[str, Axis]]:
    """Returns the metrics that some run has a value of. The metric by which runs are evaluated comes first."""
    keys = dict.fromkeys([read.judged, *MEASURES, *islice(read.own, OTHER_METRICS)])
    keys = [key for key in keys if any(finite(row.get(key)) is not None for row in read.rows)]
    names = {key: MEASURES.get(key) or shown(read.column(key).title) for key in keys}
    return [(key, Axis(name, name, unit_of(key))) for key, name in names.items()]


def contests_of(runs: list[RunData], judged: list[bool]) -> list[str]:
    """Returns the groups of runs that may be compared: one model, data set, task and target each. Groups with the most
    values to rank come first.
    """
    counts = Counter({contest_of(run): 0 for run in runs})
    counts.update(contest_of(run) for run, has_value in zip(runs, judged, strict=True) if has_value)
    return sorted(counts, key=lambda contest: (-counts[contest], contest))


def contest_of(run: RunData) -> str:
    return ", ".join(words for words in (trained(run), aim(run)) if words)


def _ranking(read: Read) -> Section:
    figures: list[Figure] = []
    for contest in contests_of(read.runs, [row.get(read.judged) is not None for row in read.rows]):
        for modelled, every in _of_kinds(read.runs):
            some = [(place, run) for place, run in every if contest_of(run) == contest]
            ranked = tuple(run.summary.get("status") not in (*BROKEN, "pruned") for _, run in some)
            places = tuple(place for place, _ in some)
            for key, y in _measures(read) if some else []:
                values = tuple(finite(read.rows[place].get(key)) for place in places)
                larger, timed = read.column(key).larger_first, key in TIMED
                figures.append(Ranking(y.name, y, contest, larger, timed, places, values, ranked, modelled))
    return Section("ranking", "Ranking", tuple(figures))


def _swept(read: Read) -> Section:
    """Returns parallel coordinates if two or more numbers are swept. With fewer, the ranking says as much."""
    axes = swept_keys(read.runs)
    chosen = {place: _chosen(run, axes) for place, run in enumerate(read.runs) if run.swept is not None}
    columns = [[values[i] for values in chosen.values() if values[i] is not None] for i in range(len(axes))]
    varied = [
        column for column in columns if len(set(column)) > 1 and all(isinstance(value, float) for value in column)
    ]
    names = tuple(shown(axis) for axis in axes)
    figures: list[Figure] = []
    for key, y in _measures(read) if len(varied) > 1 else []:
        for modelled, every in _of_kinds(read.runs):
            places = tuple(place for place, _ in every if place in chosen)
            values = tuple(finite(read.rows[place].get(key)) for place in places)
            if places:
                figures.append(
                    Coordinates(y.name, y, names, places, tuple(map(chosen.__getitem__, places)), values, modelled)
                )
    return Section("sweep", "What was swept", tuple(figures))


def _chosen(run: RunData, axes: list[str]) -> tuple[float | str | None, ...]:
    """Returns a number or a text for each axis; None if it was not swept in this run."""
    told = parameters(run)
    values = [told.get(axis) for axis in axes]
    return tuple(
        None if value is None else known if (known := finite(value)) is not None else shown(plain(value), 60)
        for value in values
    )


def check(runs: Sequence[RunData], request: FigureRequest) -> None:
    """Raises TableError where these runs lack what is asked for."""
    every = list(runs)
    rows, alone = [row_of(run) for run in every], [[place] for place in range(len(every))]
    if not against(every, rows, alone, request):
        raise TableError(f"{OPTION} {request.text}: no run was completed and has both x and y")


def usable(runs: Sequence[RunData], requests: Sequence[FigureRequest]) -> list[FigureRequest]:
    """Returns the requests whose values these runs have. A sweep may have ended before any run has them."""
    found: list[FigureRequest] = []
    for request in requests:
        with suppress(TableError):
            check(runs, request)
            found.append(request)
    return found
