"""The pictures and the table of the two runs, on one scale."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..tracking import sources
from ..tracking.columns import BY_KEY
from ..tracking.drawn import lanes as timelines
from ..tracking.drawn.charts import drawings
from ..tracking.drawn.style import PlotArea
from ..tracking.figures.built import sheet_of
from ..tracking.figures.facts import row_of
from ..tracking.figures.spec import Histogram, Lines, RowPlot, Sheet
from ..tracking.glossary import MEANINGS
from ..tracking.lanes import read
from ..tracking.run_data import RunData
from .runs import TRACED, LabRun

AREA, OF_ROWS = PlotArea(300, 200), PlotArea(300, 250)
SECTIONS = ("accuracy", "r2", "loss", "staleness", "bytes", "step")
AXES = ("time", "step")
MEASURES = (  # of which more, or less, is better
    "accuracy",
    "r2",
    "loss",
    "time_to_accuracy_s",
    "throughput_samples_per_s",
    "step_ms",
    "waiting_ms",
    "communication_ms",
    "bytes_per_step",
    "megabytes",
    "messages",
    "staleness_mean",
    "staleness_max",
    "consensus_distance",
    "lost_workers",
    "dropped_gradients",
    "epsilon",
)


def results(runs: Sequence[LabRun]) -> dict[str, Any]:
    """Returns the table and the pictures of runs, which may be going on, for the page."""
    if not runs:
        return {"table": [], "pictures": [], "timelines": [], "no_timeline": ""}
    found = [sources.gather([run.name], run.root)[0] for run in runs]
    lacking = [run.name for run in runs if run.status == "completed" and not run.trace.exists()]
    no_timeline = f"No timeline of {' and '.join(lacking)}: it is drawn of at most {TRACED:,} steps times workers."
    return {
        "table": _table(found),
        "pictures": list(_pictures(sheet_of(found))),
        "timelines": _timelines([run for run in runs if run.status == "completed" and run.trace.exists()]),
        "no_timeline": no_timeline if lacking else "",
    }


def _pictures(sheet: Sheet) -> Iterator[dict[str, str]]:
    figures = {each.id: each.figures for each in sheet.sections}
    for figure in (figure for name in SECTIONS for figure in figures.get(name, ())):
        match figure:
            case Lines():
                for axis in (axis for axis in figure.x if axis.key in AXES):
                    alone = replace(figure, x=(replace(axis, pictured=True),))
                    yield _drawn(sheet, alone, f"{figure.name} over {axis.name}", AREA)
            case Histogram():
                yield _drawn(sheet, figure, figure.name, AREA)
            case RowPlot():
                yield _drawn(sheet, figure, figure.x.title, OF_ROWS)
            case _:
                raise AssertionError(f"{figure.kind} is no picture of the lab")


def _drawn(sheet: Sheet, figure: Lines | Histogram | RowPlot, title: str, area: PlotArea) -> dict[str, str]:
    [(_, make)] = drawings(sheet, figure)
    return {"title": title, "image": _image(make(area))}


def _timelines(runs: Sequence[LabRun]) -> list[dict[str, str]]:
    """Returns a picture of each run. The same length is the same time in both."""
    told = [(run.name, read(run.trace.read_text())) for run in runs]
    length = max((lanes["end"] - lanes["begin"] for _, lanes in told), default=0.0)
    return [
        {"title": name, "image": _image(timelines.as_svg(name, lanes, length)), "words": timelines.in_words(lanes)}
        for name, lanes in told
    ]


def _image(svg: str) -> str:
    """Returns a picture as an address of its own: what it contains cannot act on the page."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _table(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Returns a line for each measure that some run has: the texts of the runs, and the name of the better one."""
    rows = [row_of(run) for run in runs]
    lines: list[dict[str, Any]] = []
    for key in MEASURES:
        column, values = BY_KEY[key], [row.get(key) for row in rows]
        if all(value in (None, column.usual) for value in values):
            continue
        better = ""
        known = [value for value in values if value is not None]
        if len(known) == len(values) == 2 and known[0] != known[1]:
            better = runs[values.index(max(known) if column.larger_first else min(known))].name
        texts = ["-" if value is None else column.text(value) for value in values]
        lines.append({"title": column.title, "values": texts, "better": better, "meaning": MEANINGS[key][1]})
    return lines
