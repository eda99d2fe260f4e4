"""The specification of a figure: its axes, its marks and its words, for any renderer.

Two renderers draw from it: `drawn/charts.py` (SVG, from which PNG and PDF follow) and the report's scripts (plotly, one
for each kind of figure below). They decide how: sizes, fonts, how many names a legend has. In the report a reader may
leave runs out, choose among the axes of `Lines` and among the figures of a section, take means of what is left
(`Sheet.settings`) and zoom; nothing of what is drawn is decided there.

Where a report and a picture differ, and why:
- Of figures without `pictured` there is no picture. `Ranking` and `Coordinates` want a choice of what settings are
  judged by, and to be asked which line is which; of losses and other metrics there may be hundreds. Throughput as rows
  is a picture alone: in the report it is a ranking. Steps are an axis of the report's alone: a step of one sync mode is
  not one of another, which a picture without its table does not tell.
- A picture draws curves whole; the report thins them to what a screen can show (`curves.thin`).
- A picture draws the seeds of a setting as lines of one look; the report can take their mean.
- Of more than five settings both make the first two of the ranking stand out (`leading.py`, `lines.js`). In the
  report a reader may pick others.
- `Series.asked` (temporaries and the runtime, which would hide small models) waits for a click in the report.
"""

from dataclasses import dataclass
from typing import Literal

from .curves import Curve
from .palette import CurveStyle

Unit = Literal["", "share", "bytes", "ms", "MiB"]  # share: in percent; bytes: in KiB, MiB and so on


@dataclass(frozen=True)
class Axis:
    """`name`: in sentences, lists of choices and names of files; `title`: beside the axis; `key`: of a curve's axis."""

    name: str
    title: str
    unit: Unit = ""
    key: str = ""
    log: bool = False
    pictured: bool = True


@dataclass(frozen=True)
class Drawn:
    """A run. `label`: its name with what must be known of it."""

    name: str
    label: str
    look: CurveStyle
    modelled: bool


@dataclass(frozen=True)
class PlotSetting:
    """Runs that differ in their seed alone and were completed, or any other run by itself; by their places."""

    label: str
    runs: tuple[int, ...]


@dataclass(frozen=True)
class Line:
    run: int
    curve: Curve
    target: float | None = None


@dataclass(frozen=True)
class Lines:
    """A metric of each run over one of the axes `x`. `aimed`: where all aim at one target, it is a line across."""

    name: str
    y: Axis
    x: tuple[Axis, ...]
    lines: tuple[Line, ...]
    modelled: bool = False
    pictured: bool = True
    aimed: bool = False
    kind: str = "lines"


@dataclass(frozen=True)
class Series:
    """`layer`: bars of one layer are stacked, layers lie below each other. `asked`: the words of its box."""

    name: str
    colour: int
    mark: Literal["bar", "dot", "diamond"] = "bar"
    layer: int = 0
    pale: bool = False
    hatched: bool = False
    asked: str = ""
    legend: bool = True


@dataclass(frozen=True)
class PlotRow:
    """`values`: of each series."""

    run: int
    values: tuple[float | None, ...]
    note: str = ""
    remarkable: float = 0.0


@dataclass(frozen=True)
class Remark:
    """A sentence about the rows whose `remarkable` is above `least`; {count}, {most} (the largest) and {run}
    (whose).
    """

    some: str
    none: str = ""
    least: float = -1.0


@dataclass(frozen=True)
class RowPlot:
    """A row for each run, or two, from above in the order of the runs. `says`: below it, {runs} is how many."""

    name: str
    x: Axis
    series: tuple[Series, ...]
    rows: tuple[PlotRow, ...]
    says: str
    remark: Remark | None = None
    note: str = ""  # for a picture, where `says` would be too long
    lacking: str = "without"  # what may be the matter with runs that have no row: "too short" is told apart
    modelled: bool = False
    pictured: bool = True
    kind: str = "rows"


@dataclass(frozen=True)
class Histogram:
    """Counts of values for each run, [(value, count)], drawn as shares of their sum, by whole values from 0 on."""

    name: str
    x: Axis
    y: Axis
    runs: tuple[int, ...]
    counts: tuple[tuple[tuple[float, float], ...], ...]
    modelled: bool = False
    pictured: bool = True
    kind: str = "histogram"


@dataclass(frozen=True)
class Ranking:
    """Settings by the mean of `values` (of each run; None: it has none), among those that may be compared.

    `ranked`: runs that broke are counted and have no bar. `timed`: a run may be too short to have it.
    """

    name: str
    y: Axis
    among: str
    larger: bool
    timed: bool
    runs: tuple[int, ...]
    values: tuple[float | None, ...]
    ranked: tuple[bool, ...]
    modelled: bool = False
    pictured: bool = False
    kind: str = "ranking"


@dataclass(frozen=True)
class Coordinates:
    """Parallel coordinates: an axis for each of `axes`, the last for the metric `y`; `chosen` by run, then axis."""

    name: str
    y: Axis
    axes: tuple[str, ...]
    runs: tuple[int, ...]
    chosen: tuple[tuple[float | str | None, ...], ...]
    values: tuple[float | None, ...]
    modelled: bool = False
    pictured: bool = False
    kind: str = "coordinates"


@dataclass(frozen=True)
class PlotPoint:
    """A setting's runs and what each has of every panel's y: drawn where all have it."""

    x: float | str
    runs: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]  # by panel, then run


@dataclass(frozen=True)
class PlotTrace:
    """`label`: what its points have in common, "" where there is one trace alone."""

    label: str
    look: CurveStyle
    points: tuple[PlotPoint, ...]


@dataclass(frozen=True)
class Against:
    """`panels` side by side over one x: the mean of each setting's seeds, and their range."""

    name: str
    x: Axis
    panels: tuple[Axis, ...]
    traces: tuple[PlotTrace, ...]
    joined: bool  # by lines: x is a number that was chosen
    modelled: bool = False
    pictured: bool = True
    kind: str = "against"


Figure = Lines | RowPlot | Histogram | Ranking | Coordinates | Against


@dataclass(frozen=True)
class Section:
    """Figures of one kind under one head, to choose among by what they show.

    `guide`: the question that they answer, and the command that follows. It is shown in the report.
    """

    id: str
    title: str
    figures: tuple[Figure, ...]
    guide: str = ""


@dataclass(frozen=True)
class Sheet:
    """Everything that is drawn of some runs."""

    runs: tuple[Drawn, ...]
    settings: tuple[PlotSetting, ...]
    sections: tuple[Section, ...]
