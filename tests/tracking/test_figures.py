"""What figures show is said once, and both renderers draw that."""

import re
import xml.etree.ElementTree as ET
from importlib import resources
from typing import get_args

import pytest
from some_runs import failed, many, recorded

from paceline.tracking.drawn.charts import drawings
from paceline.tracking.figures.built import sheet_of
from paceline.tracking.figures.spec import Figure, Lines, Ranking, RowPlot
from paceline.tracking.report.document import sections_of

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str, count: int) -> list[ET.Element]:
    """The bars of rows, row by row; those of the legend come last."""
    return [bar for bar in ET.fromstring(svg).iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None][:count]


def test_every_share_is_in_percent_as_accuracy_is() -> None:
    runs = [recorded(name, number=i, summary={"metrics": {"robust_accuracy": 0.5}}) for i, name in enumerate("ab")]
    for run in runs:
        run.records.append({"kind": "evaluation", "step": 9, "time": 1.0, "robust_accuracy": 0.5})
    figures = [each for part in sheet_of(runs, "robust_accuracy").sections for each in part.figures]
    [curve] = [each.y for each in figures if isinstance(each, Lines) and each.name == "robust_accuracy"]
    [ranking] = [each.y for each in figures if isinstance(each, Ranking) and each.y.name == "robust acc."]
    assert curve.unit == ranking.unit == "share"


def test_the_report_has_a_renderer_for_each_kind_of_figure() -> None:
    script = resources.files("paceline.tracking.report").joinpath("main.js").read_text()
    builders = script.partition("const BUILDERS")[2].partition("};")[0]
    kinds = {kind.__dataclass_fields__["kind"].default for kind in get_args(Figure)}
    assert set(re.findall(r"(\w+): \w+Section", builders)) == kinds


def test_each_kind_that_has_pictures_is_drawn() -> None:
    runs = [recorded("bsp"), recorded("asp", number=1, sync="asp"), failed()]
    sheet = sheet_of(runs)
    figures = [figure for section in sheet.sections for figure in section.figures if figure.pictured]
    drawn = [
        (each, [name for name, make in drawings(sheet, each) if ET.fromstring(make()) is not None]) for each in figures
    ]
    assert {figure.kind for figure in figures} == {"lines", "rows", "histogram"}
    assert all(names and all(name.startswith(figure.name) for name in names) for figure, names in drawn)


@pytest.mark.parametrize(
    ("labels", "rows"),
    [
        ([[3, 0, 9], [0, 4, 1]], [(3.0, 0.0, 9.0), (0.0, 4.0, 1.0)]),
        ([[3, 0], [0]], []),
        ([[3, -1], [0, 2]], []),
        ([["3", 1]], []),
        ([[1] * 17], []),
        ("many", []),
    ],
)
def test_labels_of_replicas_are_bars_where_a_summary_tells_them_and_no_figure_where_it_tells_nonsense(labels, rows):
    runs = [recorded("plain"), recorded("parties", number=1, summary={"labels": labels})]
    figures = [figure for section in sheet_of(runs).sections for figure in section.figures if figure.name == "labels"]
    assert [row.values for figure in figures if isinstance(figure, RowPlot) for row in figure.rows] == rows
    assert bool(figures) == bool(rows)


def test_bars_of_the_picture_are_as_long_as_the_reports() -> None:
    sheet = sheet_of(many(3))
    [figure] = next(section.figures for section in sheet.sections if section.id == "step")
    [(_, make)] = drawings(sheet, figure)
    step = next(section for section in sections_of(sheet) if section["id"] == "step")["figures"][0]
    wanted = [value for row in step["rows"] for value in row["values"]]
    widths = [float(bar.get("width", 0)) for bar in bars(make(), len(wanted))]
    assert [width / widths[0] for width in widths] == pytest.approx([value / wanted[0] for value in wanted], rel=1e-2)


def test_measured_and_modelled_runs_are_in_no_figure_together() -> None:
    sheet = sheet_of([recorded("real", sync="asp"), recorded("virtual", sync="asp", modelled=True)])
    for section in sheet.sections:
        for figure in section.figures:
            of = figure.lines if isinstance(figure, Lines) else figure.rows if isinstance(figure, RowPlot) else None
            places = {each.run for each in of} if of is not None else {*getattr(figure, "runs", ())}
            assert places == {int(figure.modelled)}
