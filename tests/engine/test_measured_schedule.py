"""A run's schedule.json: its measured step beside the modelled one."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from short_runs import QUICK
from test_trace import report

from paceline import engine
from paceline.comm.timeline import TimedPass
from paceline.engine.fabrics.layout import RunLayout
from paceline.engine.training.measured_schedule import beside
from paceline.strategies.core.mesh import Mesh
from paceline.tracking.schedule import MOST_PASSES, read_schedule

PIPELINE = (*QUICK, "strategy=pipeline", "hardware.workers=2", "model.hidden=[64,32,16]", "measure.after=1")


def kept(root: Path, *overrides: str) -> dict[str, Any]:
    result = engine.run([*overrides], name="mine", root=root, quiet=True, trace=root / "trace.json")
    assert result is not None
    return read_schedule(result.path / "schedule.json")


def passes(table: dict[str, Any]) -> list[list[tuple[str, float, float]]]:
    """Of each worker, without updates, which take no time in a model, and the rounding at the end of steady state."""
    return [
        [
            (each["action"], each["start"], each["end"])
            for each in row["actions"]
            if "U" not in each["action"] and each["start"] < table["time"] * (1 - 1e-9)
        ]
        for row in table["workers"]
    ]


def names(table: dict[str, Any]) -> list[list[str]]:
    return [[name for name, *_ in row] for row in passes(table)]


@pytest.mark.dist
@pytest.mark.parametrize(
    "how",
    [
        "strategy.schedule=zb_h1",
        pytest.param("strategy.schedule=1f1b", marks=pytest.mark.slow),
        pytest.param("strategy.schedule=gpipe", marks=pytest.mark.slow),
        pytest.param("strategy.schedule=interleaved", marks=pytest.mark.slow),
        pytest.param("strategy.recompute=true", marks=pytest.mark.slow),
        pytest.param("strategy.recompute=true strategy.schedule=zb_h1", marks=pytest.mark.slow),
    ],
)
def test_on_the_virtual_clock_a_step_is_measured_as_it_was_modelled_with_its_messages(
    how: str, tmp_path: Path, fork_server: None
) -> None:
    overrides = [*PIPELINE, "hardware=virtual", *how.split()]
    told = kept(tmp_path, *overrides)
    modelled, measured = told["modelled"], told["measured"]
    timetable = engine.prepare(overrides).timetable()
    assert timetable is not None and modelled == timetable.as_dict()
    assert told["clock"] == "modelled" and (modelled["unit"], measured["unit"]) == ("seconds", "seconds")
    assert names(measured) == names(modelled)
    for made, expected in zip(passes(measured), passes(modelled), strict=True):
        for one, other in zip(made, expected, strict=True):
            assert one[1:] == pytest.approx(other[1:], rel=1e-9, abs=1e-12)
    assert measured["time"] == pytest.approx(modelled["time"], rel=1e-9)
    assert measured["bubble"] == pytest.approx(modelled["bubble"], abs=1e-9) and measured["bubble"] > 0
    assert measured["stages"] == modelled["stages"]


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("schedule", ["pipedream", pytest.param("pipedream_2bw", marks=pytest.mark.slow)])
def test_without_a_flush_a_window_of_steady_state_is_measured(schedule: str, tmp_path: Path, fork_server: None) -> None:
    """What a worker that is not the slowest does may begin earlier or later; how long it takes is the same."""
    told = kept(tmp_path, *PIPELINE, "hardware=virtual", f"strategy.schedule={schedule}", "steps=40")
    modelled, measured = told["modelled"], told["measured"]
    assert measured["steady"] and names(measured)[-1] == names(modelled)[-1]
    assert measured["time"] == pytest.approx(modelled["time"], rel=1e-9)
    assert measured["bubble"] == pytest.approx(modelled["bubble"], abs=1e-9)
    for row, other in zip(measured["workers"], modelled["workers"], strict=True):
        assert row["bubble"] == pytest.approx(other["bubble"], abs=1e-9)


@pytest.mark.dist
@pytest.mark.slow
def test_a_stream_that_is_drained_before_it_is_steady_has_no_measured_one(tmp_path: Path, fork_server: None) -> None:
    how = ("hardware=virtual", "strategy.schedule=pipedream", "steps=5")
    told = kept(tmp_path, *PIPELINE, *how)
    assert told["measured"] is None and told["modelled"]["steady"]


@pytest.mark.dist
@pytest.mark.slow
def test_real_processes_make_the_passes_of_the_schedule_one_after_the_other(tmp_path: Path, fork_server: None) -> None:
    told = kept(tmp_path, *PIPELINE, "strategy.schedule=1f1b")
    modelled, measured = told["modelled"], told["measured"]
    assert told["clock"] == "measured" and (told["schedule"], modelled["unit"]) == ("1f1b", "floating-point operations")
    assert names(measured) == names(modelled)
    ended: dict[str, float] = {}
    for row in passes(measured):
        assert all(one[2] <= other[1] for one, other in pairwise(row))
        assert all(0 <= start <= end <= measured["time"] * (1 + 1e-9) for _, start, end in row)
        ended |= {name: end for name, _, end in row}
    starts = {name: start for row in passes(measured) for name, start, _ in row}
    assert all(starts[f"1F{j}"] >= ended[f"0F{j}"] and starts[f"0B{j}"] >= ended[f"1B{j}"] for j in range(4))
    assert 0 < measured["bubble"] < 1


@pytest.mark.dist
@pytest.mark.slow
def test_a_hybrid_keeps_that_of_the_first_worker_of_each_stage(tmp_path: Path, fork_server: None) -> None:
    how = (*QUICK, "model.hidden=[64,64,64]", "strategy=hybrid", "hardware=virtual", "hardware.workers=4")
    told = kept(tmp_path, *how, "measure.after=1")
    assert len(told["measured"]["workers"]) == 2 and names(told["measured"]) == names(told["modelled"])


@pytest.mark.dist
@pytest.mark.parametrize(
    ("strategy", "trace"), [("pipeline", False), pytest.param("data_parallel", True, marks=pytest.mark.slow)]
)
def test_without_a_trace_or_a_schedule_nothing_is_kept(
    strategy: str, trace: bool, tmp_path: Path, fork_server: None
) -> None:
    overrides = [*QUICK, f"strategy={strategy}", "hardware=virtual", "hardware.workers=2"]
    result = engine.run(overrides, name="mine", root=tmp_path, quiet=True, trace=tmp_path / "t" if trace else None)
    assert result is not None and not (result.path / "schedule.json").exists()


# -- made-up reports


def table(*rows: str, steady: bool = False) -> dict[str, Any]:
    workers = [
        {
            "bubble": 0.5,
            "actions": [{"action": name, "start": i, "end": i + 1.0} for i, name in enumerate(row.split())],
        }
        for row in rows
    ]
    stages = [{"stage": i, "worker": i, "in_flight": 1, "versions": 1} for i in range(len(rows))]
    told = {"unit": "seconds", "time": 4.0, "steps": 1, "steady": steady, "bubble": 0.5}
    return {**told, "stages": stages, "workers": workers}


def step(begin: float, long: float) -> list[list[TimedPass]]:
    """Forward on both workers, then backward, each pass `long`."""
    at = [begin + i * long for i in range(5)]
    return [
        [TimedPass("0F0", at[0], at[1]), TimedPass("0B0", at[3], at[4])],
        [TimedPass("1F0", at[1], at[2]), TimedPass("1B0", at[2], at[3])],
    ]


def found(*longs: float, left_out: int = 0, lost: int | None = None) -> dict[str, Any] | None:
    steps = [step(100.0 * i, long) for i, long in enumerate(longs)]
    spans = [(100.0 * i, 100.0 * i + 99, 1) for i in range(len(longs))]
    reports = [
        report(rank, spans, [], left_out=left_out, passes=[each for made in steps for each in made[rank]])
        for rank in (0, 1)
    ]
    if lost is not None:
        reports[1].passes = [each for each in reports[1].passes if not 100 * lost <= each.start < 100 * lost + 99]
    layout = RunLayout(Mesh({"replica": 1, "stage": 2}), 0, 1)
    return beside("naive", table("0F0 0B0", "1F0 1B0"), reports, layout, False)


def measured_time(*longs: float, **how: Any) -> float:
    told = found(*longs, **how)
    assert told is not None and told["measured"] is not None
    assert told["measured"]["bubble"] == pytest.approx(0.5)
    return told["measured"]["time"]


def test_the_step_of_median_time_is_taken_of_those_that_are_timed_and_whole() -> None:
    assert measured_time(5.0, 1.0, 3.0) == pytest.approx(12.0)
    assert measured_time(5.0, 1.0, 3.0, left_out=2) == pytest.approx(12.0)
    assert measured_time(9.0, 9.0, 2.0, 3.0, 9.0, left_out=1, lost=1) == pytest.approx(12.0)
    assert measured_time(9.0, 2.0, lost=0) == pytest.approx(8.0)


def test_where_no_step_is_timed_nothing_is_measured_and_without_passes_nothing_is_kept() -> None:
    told = found(1.0, 2.0, left_out=2)
    assert told is not None and told["measured"] is None
    layout = RunLayout(Mesh({"replica": 1, "stage": 2}), 0, 1)
    assert beside("naive", table("0F0 0B0", "1F0 1B0"), [report(0, [], []), report(1, [], [])], layout, False) is None


def test_of_more_passes_than_a_report_takes_the_times_are_kept_alone(tmp_path: Path) -> None:
    many = table(" ".join(f"0F{j}" for j in range(MOST_PASSES + 1)))
    made = [TimedPass(each["action"], each["start"], each["end"]) for each in many["workers"][0]["actions"]]
    layout = RunLayout(Mesh({"replica": 1, "stage": 1}), 0, 0)
    told = beside("naive", many, [report(0, [(0.0, 1e6, 1)], [], passes=made)], layout, False)
    assert told is not None
    assert [each["workers"][0]["actions"] for each in (told["modelled"], told["measured"])] == [[], []]
    (tmp_path / "schedule.json").write_text(json.dumps(told))
    assert read_schedule(tmp_path / "schedule.json") == told
