"""Figures over parameters: what is asked for, which points there are, and that both renderers show these."""

import csv
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from some_runs import recorded

from paceline.tracking.compare import ComparisonRequest as Table
from paceline.tracking.compare import render, rows, table
from paceline.tracking.drawn import svg
from paceline.tracking.drawn.axes import SMALL, frame, scale
from paceline.tracking.drawn.charts import drawings
from paceline.tracking.drawn.style import PlotArea
from paceline.tracking.errors import CorruptRunError, TableError
from paceline.tracking.figures.built import check, sheet_of, usable
from paceline.tracking.figures.request import FigureRequest, in_description
from paceline.tracking.figures.spec import Against
from paceline.tracking.run_data import RunData
from paceline.tracking.sources import gather

SVG = "{http://www.w3.org/2000/svg}"


def run(sync: str, workers: int, seed: int, time: float | None, **more: Any) -> RunData:
    config = {"sync": {"name": sync, "target": "x.Y", "knobs": {"period": 4}}, "hardware": {"workers": workers}}
    told = {"time_to_accuracy": time, "workers": workers, "batch_size": 32} | more
    return recorded(f"{sync}-{workers}-{seed}", sync=sync, config={**config, "seed": seed}, summary=told)


def scaling() -> list[RunData]:
    """Two sync modes, three numbers of workers, two seeds each; the last of asp never reached the target."""
    return [
        run(sync, workers, seed, None if (sync, workers, seed) == ("asp", 4, 1) else 8.0 / workers + seed)
        for sync in ("bsp", "asp")
        for workers in (4, 1, 2)
        for seed in (0, 1)
    ]


def figure(runs: list[RunData], text: str) -> Against:
    sections = sheet_of(runs, requests=[FigureRequest.parse(text)]).sections
    (found,) = next(section for section in sections if section.id == "parameters").figures
    assert isinstance(found, Against)
    return found


def test_a_line_for_each_value_points_in_order_and_every_seed_beside_its_setting() -> None:
    found = figure(scaling(), "x=hardware.workers y=time_to_accuracy line=sync log=hardware.workers")
    assert [trace.label for trace in found.traces] == ["bsp", "asp"]
    assert [point.x for point in found.traces[0].points] == [1.0, 2.0, 4.0]
    assert found.traces[0].points[0].values == ((8.0, 9.0),)
    assert found.joined and found.x.log and not found.panels[0].log
    assert found.panels[0].title == "time to accuracy, s"


def test_a_line_for_each_combination_of_two_names_them() -> None:
    found = figure(scaling(), "x=accuracy y=time_to_accuracy line=sync,hardware.workers")
    labels = [trace.label for trace in found.traces]
    assert labels[0] == "sync bsp, workers 4" and len(set(labels)) == len(labels) == 6


def drawn(runs: list[RunData], text: str) -> ET.Element:
    sheet = sheet_of(runs, requests=[FigureRequest.parse(text)])
    [(_, make)] = drawings(sheet, figure(runs, text))
    return ET.fromstring(make())


def test_in_a_small_picture_the_title_is_whole_and_a_line_of_a_number_has_its_name() -> None:
    text = "x=hardware.workers y=time_to_accuracy line=workers"
    sheet = sheet_of(scaling(), requests=[FigureRequest.parse(text)])
    [(_, make)] = drawings(sheet, figure(scaling(), text))
    picture = ET.fromstring(make(PlotArea(140, 90)))
    middle = [each for each in picture.iter(f"{SVG}text") if each.get("text-anchor") == "middle"]
    assert " ".join(each.text or "" for each in middle).endswith(
        "(mean of the seeds, and from the lowest to the highest)"
    )
    assert all(float(each.get("x", 0)) > svg.LETTER * len(each.text or "") / 2 for each in middle)
    assert texts(picture, "named") == ["workers 4", "workers 1", "workers 2"]


def test_ticks_of_a_narrow_axis_do_not_overlap() -> None:
    x, y = scale([0, 0.09], 60, 200), scale([0, 1], 100, 10)
    picture = ET.fromstring(f"<svg>{''.join(frame(x, y, 'x', 'y'))}</svg>")
    ticks = [each for each in picture.iter("text") if "tick" in (each.get("class") or "").split()]
    places = [(float(tick.get("x", 0)), SMALL * len(tick.text or "")) for tick in ticks]
    assert [tick.text for tick in ticks] == ["0", "0.04", "0.08"]
    assert all(right - left > (one + other) / 2 for (left, one), (right, other) in pairwise(places))


def texts(picture: ET.Element, name: str) -> list[str]:
    return [each.text or "" for each in picture.iter() if name in (each.get("class") or "").split()]


def test_a_setting_with_a_seed_that_never_got_there_or_broke_has_no_mean() -> None:
    runs = [*scaling(), run("bsp", 8, 0, 1.0), run("bsp", 8, 1, 0.1, status="diverged")]
    picture = drawn(runs, "x=hardware.workers y=time_to_accuracy,accuracy line=sync name=scaling")
    titles = [each.text or "" for each in picture.iter(f"{SVG}title")]
    told = [title for title in titles if re.match(r"[ab]sp \d+\.?\d*, ", title)]
    assert told == ["bsp 8.5, 8 to 9", "bsp 4.5, 4 to 5", "bsp 2.5, 2 to 3", "asp 8.5, 8 to 9", "asp 4.5, 4 to 5"]
    assert "accuracy, %" in [each.text for each in picture.iter(f"{SVG}text")]
    assert texts(picture, "named") == ["bsp", "asp"]


def test_what_is_measured_may_be_x_and_is_not_joined_by_lines() -> None:
    found = figure(scaling(), "x=bytes y=accuracy line=sync")
    assert not found.joined and found.x.unit == "bytes" and found.panels[0].unit == "share"


def test_of_several_names_the_first_that_a_run_has_is_taken() -> None:
    runs = scaling()
    for each in runs[6:]:
        each.config["sync"]["knobs"] = {"push": 16}
    found = figure(runs, "x=sync.period|sync.push y=accuracy line=sync")
    assert [[point.x for point in trace.points] for trace in found.traces] == [[4.0] * 3, [16.0] * 3]


def test_names_are_values_where_x_is_text_and_measured_and_modelled_runs_are_apart() -> None:
    runs = [*scaling(), run("gossip", 4, 0, 1.0, modelled=True)]
    section = next(
        s for s in sheet_of(runs, requests=[FigureRequest.parse("x=sync y=accuracy")]).sections if s.id == "parameters"
    )
    assert [
        (f.modelled, sorted({point.x for trace in f.traces for point in trace.points}))
        for f in section.figures
        if isinstance(f, Against)
    ] == [(False, ["asp", "bsp"]), (True, ["gossip"])]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("y=accuracy", "x= is missing"),
        ("x=sync", "y= is missing"),
        ("x=sync y", "y must be KEY=NAME"),
        ("x=sync y=accuracy lien=sync", "there is no key lien; did you mean line"),
        ("x=sync x=data y=accuracy", "x is there twice"),
        ("x=sync y=accuracy log=bytes", "log=bytes must be one of x and y: sync, accuracy"),
        ("x=sync y=accuracy name=a/b", "name=a/b must be"),
    ],
)
def test_a_figure_that_cannot_be_read_is_refused_with_the_rule(text: str, rule: str) -> None:
    with pytest.raises(TableError) as refused:
        FigureRequest.parse(text)
    assert str(refused.value).startswith(f"--figure {text}: ") and rule in str(refused.value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("x=hardware.wokers y=accuracy", "did you mean hardware.workers"),
        ("x=sync y=acuracy", "did you mean accuracy"),
        ("x=sync y=strategy", "y=strategy holds text"),
        ("x=sync y=r2", "no run was completed and has both"),
    ],
)
def test_what_no_run_has_is_refused_or_left_out_of_what_a_sweep_asks_for(text: str, rule: str) -> None:
    request = FigureRequest.parse(text)
    with pytest.raises(TableError) as refused:
        check(scaling(), request)
    assert f"--figure {text}: " in str(refused.value) and rule in str(refused.value)
    assert usable(scaling(), [request]) == []


def test_figures_of_a_sweep_are_lines_of_its_description() -> None:
    text = "Who scales?\n--figure x=sync y=accuracy\n  --figure 'x=data y=loss'\nthe --figure that is none"
    assert in_description(text) == ["x=sync y=accuracy", "x=data y=loss"]
    assert in_description(None) == []


# -- CSV


def test_a_table_of_runs_is_read_back_and_draws_the_same_figure(tmp_path: Path) -> None:
    runs = scaling()
    words = ("sync", "hardware.workers", "seed", "modelled", "accuracy", "time_to_accuracy_s", "updates_per_second")
    told, _ = table(runs, Table(group=False, columns=words))
    file = tmp_path / "scaling.csv"
    file.write_text(render(told, "csv", columns=("run", *words)))
    again = gather([str(file)], tmp_path)
    assert [run.name for run in again] == [run.name for run in runs]
    text = "x=hardware.workers y=time_to_accuracy line=sync"
    assert figure(again, text) == figure(runs, text)
    assert [row["updates_per_second"] for row in rows(again)] == pytest.approx([2.0 / 0.004] * len(runs))


def test_a_table_without_names_of_runs_or_with_words_of_its_own_is_read(tmp_path: Path) -> None:
    file = tmp_path / "study.csv"
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([["way", "seed", "own_measure"], ["a, b", 0, 1.5], ["a, b", 1, 2.5], ["c", 0, 3]])
    found = figure(gather([str(file)], tmp_path), "x=way y=own_measure")
    assert [(point.x, point.values) for point in found.traces[0].points] == [("a, b", ((1.5, 2.5),)), ("c", ((3.0,),))]


@pytest.mark.parametrize("value", ["-inf", "inf", "nan", "1e301", "9" * 400])
def test_a_metric_or_what_it_took_that_is_no_finite_number_has_no_point(value: str, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    rest = "a,0.9,100\nb,0.8,60\nc,0.7,"
    file.write_text(f"sync,r2,megabytes\n{rest}{value}\nd,{value},50\n")
    runs = gather([str(file)], tmp_path)
    traded = next(section for section in sheet_of(runs).sections if section.id == "traded")
    (found,) = traded.figures
    assert isinstance(found, Against)
    assert [(p.x, p.values) for trace in found.traces for p in trace.points] == [(100.0, ((0.9,),)), (60.0, ((0.8,),))]
    assert figure(runs, "x=sync y=megabytes").traces


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("", "holds no runs"),
        ("a,b\n", "holds no runs"),
        ("a,a\n1,2\n", "two of its columns have one name"),
        ("a,b\n1\n", "line 2 has 1 values for 2 columns"),
        ('a,b\n"1,2\n', "unexpected end of data"),
    ],
    ids=["empty", "no lines", "twice", "short", "quotes"],
)
def test_a_file_that_is_no_table_is_refused(content: str, rule: str, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text(content)
    with pytest.raises(CorruptRunError, match=rule):
        gather([str(file)], tmp_path)


# -- what a run's records tell


def test_passes_steps_and_rounds_to_the_target_are_those_of_the_first_evaluation_there() -> None:
    (row,) = rows([run("local_sgd", 2, 0, 1.0)])
    reached = next(r for r in run("local_sgd", 2, 0, 1.0).records if r.get("accuracy", 0) >= 0.9)
    assert row["epochs_to_accuracy"] == reached["epoch"] > 1
    assert row["steps_to_accuracy"] == reached["step"] and row["rounds_to_accuracy"] == -(-reached["step"] // 4)
    assert row["time_per_pass_s"] * row["epochs_to_accuracy"] == pytest.approx(row["time_to_accuracy_s"])
    (never,) = rows([recorded(epochs=1, summary={"target_accuracy": 0.99})])
    told = ("epochs_to_accuracy", "rounds_to_accuracy", "steps_to_accuracy", "time_per_pass_s")
    assert [never[key] for key in told] == [None] * 4


@pytest.mark.parametrize(
    "sizes",
    [[128, 1024, 8192, 65536, 524288, 3276800], [32, 128, 512, 1024, 2048, 4096, 8192]],
    ids=["even", "crowded"],
)
def test_ticks_of_long_numbers_do_not_overlap_and_an_axis_of_few_decades_has_several(sizes: list[int]) -> None:
    runs = [run("gossip_exponential", size, 0, 0.3 * (1 + 16.384 * size / sizes[-1])) for size in sizes]
    text = "x=hardware.workers y=time_to_accuracy line=sync log=hardware.workers,time_to_accuracy"
    picture = drawn(runs, text)
    ticks = [each for each in picture.iter(f"{SVG}text") if "tick" in (each.get("class") or "").split()]
    assert [tick.text for tick in ticks] == [f"{size:,}" for size in sizes]
    places = [float(tick.get("x", 0)) for tick in ticks]
    widths = [10.0 if tick.get("transform") else SMALL * len(tick.text or "") for tick in ticks]
    neighbours = pairwise(zip(places, widths, strict=True))
    assert all(right - left > (one + other) / 2 for (left, one), (right, other) in neighbours)
    named = [
        each.text for each in picture.iter(f"{SVG}text") if each.get("class") == "small" and each.get("text-anchor")
    ]
    assert named == ["0.5", "1", "2", "5"]


def test_seeds_that_agree_have_a_point_even_where_their_mean_is_rounded_past_them() -> None:
    time = 0.1
    assert fmean([time] * 3) > time
    runs = [run("bsp", workers, seed, time) for workers in (1, 2) for seed in range(3)]
    picture = drawn(runs, "x=hardware.workers y=time_to_accuracy")
    assert len([each for each in picture.iter() if "mark" in (each.get("class") or "").split()]) == 2
