"""A pipeline's schedule in the report: both pictures on one time axis, the sentence beside them, and damaged files."""

import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from recorded import directory
from some_runs import recorded

from paceline.tracking.files import UnusableFileError
from paceline.tracking.report import write_report
from paceline.tracking.report.document import document
from paceline.tracking.report.schedules import MOST_DRAWN
from paceline.tracking.schedule import MOST_PASSES, read_schedule
from paceline.tracking.sources import from_directory

SVG = "{http://www.w3.org/2000/svg}"
DATA = "data:image/svg+xml;base64,"


def table(seconds: float, unit: str = "seconds") -> dict[str, Any]:
    """Two workers, each busy for half of the time."""
    rows = [[("0F0", 0.0, 1.0), ("0B0", 3.0, 4.0)], [("1F0", 1.0, 2.0), ("1B0", 2.0, 3.0)]]
    workers = [
        {
            "bubble": 0.5,
            "actions": [{"action": a, "start": b * seconds / 4, "end": e * seconds / 4} for a, b, e in row],
        }
        for row in rows
    ]
    stages = [{"stage": i, "worker": i, "in_flight": 1, "versions": 1} for i in (0, 1)]
    told = {"unit": unit, "time": seconds, "steps": 1, "steady": False, "bubble": 0.5}
    return {**told, "stages": stages, "workers": workers}


def schedule(**different: Any) -> dict[str, Any]:
    told = {"schedule": "1f1b", "clock": "measured", "modelled": table(0.002), "measured": table(0.004)}
    return {**told, **different}


def shown_of(kept: dict[str, Any], name: str = "mine") -> dict[str, Any]:
    [shown] = document([replace(recorded(name), schedule=kept)])["schedules"]
    return shown


def svgs(shown: dict[str, Any]) -> list[ET.Element]:
    assert all(source.startswith(DATA) for source in shown["pictures"])
    return [ET.fromstring(b64decode(source.removeprefix(DATA))) for source in shown["pictures"]]


def bars(svg: ET.Element, kind: str | None = None) -> list[tuple[float, float]]:
    """(left, width) of a picture's passes, or of its bubbles."""
    drawn = [
        rect
        for rect in svg.iter(f"{SVG}rect")
        if (rect.get("class", "") == "empty") == (kind == "bubble")
        and rect.find(f"{SVG}title") is not None
        and float(rect.get("height", "0")) > 20  # not of the legend
    ]
    return [(float(rect.get("x", "")), float(rect.get("width", ""))) for rect in drawn]


def test_both_are_drawn_one_above_the_other_on_one_time_axis_and_the_sentence_says_which_is_which() -> None:
    shown = shown_of(schedule())
    modelled, measured = svgs(shown)
    assert [svg.findtext(f"{SVG}title") for svg in (modelled, measured)] == [
        "Modelled: bubble 50.0%",
        "Measured: bubble 50.0%",
    ]
    assert len(bars(modelled)) == len(bars(measured)) == 4
    assert [wide for _, wide in bars(measured)] == pytest.approx([2 * wide for _, wide in bars(modelled)])
    assert [wide for _, wide in bars(modelled, "bubble")] == [480, 480]
    assert [wide for _, wide in bars(measured, "bubble")] == [960, 960]
    assert shown["says"] == (
        "Schedule 1f1b: modelled, the bubble is 50.0%, and a step takes 2 ms; measured on the workers' clocks, in the "
        "step of median time, it is 50.0%, and a step takes 4 ms."
    )
    assert "on the virtual cluster's clock" in shown_of(schedule(clock="modelled"))["says"]


def test_operations_are_drawn_at_the_rate_of_what_was_measured_and_the_sentence_says_so() -> None:
    shown = shown_of(schedule(modelled=table(8e9, "floating-point operations")))
    modelled, measured = svgs(shown)
    assert bars(modelled) == bars(measured)
    assert "in proportion to their floating-point operations, and messages that take no time; measured" in shown["says"]
    assert shown["says"].endswith("scaled so that all passes together take as long as measured.")


def test_where_nothing_was_measured_the_model_stands_alone_and_the_sentence_says_why() -> None:
    shown = shown_of(schedule(measured=None))
    assert len(svgs(shown)) == 1
    assert shown["says"].endswith("nothing was measured, because no step with all of its passes was timed.")


def test_passes_are_drawn_up_to_a_number_in_all() -> None:
    many = table(0.004)
    many["workers"][0]["actions"] *= MOST_DRAWN // 8
    runs = [replace(recorded(name), schedule=schedule(modelled=many)) for name in "abcdef"]
    drawn = [len(each["pictures"]) for each in document(runs)["schedules"]]
    assert drawn == [2, 2, 2, 0, 0, 0]
    empty = table(0.004)
    empty["workers"] = [{**row, "actions": []} for row in empty["workers"]]
    shown = shown_of(schedule(modelled=empty, measured=empty))
    assert shown["pictures"] == [] and shown["says"].endswith("It has more passes than are drawn.")


def test_what_a_file_says_is_text_in_the_page_and_no_markup(tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=hacked()>"
    write_report([replace(recorded(bad), schedule=schedule(schedule=bad))], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert bad not in page and "<img src=x" not in page
    for svg in svgs(shown_of(schedule(schedule=bad), bad)):
        assert {each.tag.removeprefix(SVG) for each in svg.iter()} == {
            *("svg", "title", "desc", "style", "defs", "pattern", "path", "text", "rect")
        }


# -- the file


@pytest.mark.parametrize("run", ["traced", "untraced"])
def test_a_run_has_what_its_file_says(run: str, tmp_path: Path) -> None:
    made = directory(tmp_path, run)
    if run == "traced":
        made.write_schedule(schedule())
    found = from_directory(made)
    assert found.damage == () and found.schedule == (schedule() if run == "traced" else None)


def changed(at: tuple[Any, ...], to: Any) -> Any:
    told: Any = schedule()
    place = told
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = to
    return told


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ([], "its beginning"),
        ({}, "schedule"),
        (changed(("schedule",), "x" * 201), "schedule"),
        (changed(("measured", "time"), 0), "measured.time"),
        (changed(("measured", "time"), "NaN"), "measured.time"),
        (changed(("measured", "bubble"), 1e9), "measured.bubble"),
        (changed(("modelled", "unit"), "<b>"), "modelled.unit"),
        (changed(("modelled", "workers"), []), "modelled.workers"),
        (changed(("modelled", "workers", 1, "actions", 0, "action"), "0F0\n"), "modelled.workers.1.actions.0.action"),
        (changed(("modelled", "workers", 1, "actions", 0, "start"), -1.0), "modelled.workers.1.actions.0.start"),
        (
            changed(("modelled", "workers", 0, "actions"), [{}] * (MOST_PASSES + 1)),
            "modelled.workers.0.actions",
        ),
        (changed(("modelled", "more"), 1), "modelled.more"),
    ],
)
def test_a_damaged_file_is_named_with_the_place_and_the_report_is_made_without_it(
    content: Any, where: str, tmp_path: Path
) -> None:
    made = directory(tmp_path, "damaged")
    made.schedule.write_text(json.dumps(content))
    found = from_directory(made)
    assert found.damage == (f"{made.schedule}: is no schedule of a run (see {where})",)
    assert document([found])["schedules"] == []
    with pytest.raises(UnusableFileError):
        read_schedule(made.schedule)
