"""What a run and a comparison are in Python."""

from pathlib import Path
from typing import Any

import pytest

from paceline import engine
from paceline.engine import Result, compare, load
from paceline.tracking.errors import CorruptRunError, RunNameError, TableError
from paceline.tracking.records import MeasuredStepTime, Wire
from paceline.tracking.run_directory import RunDirectory

MEASURED: dict[str, Any] = {
    "strategy": "data_parallel",
    "model": "mlp",
    "data": "digits",
    "status": "completed",
    "workers": 2,
    "modelled": False,
    "throughput": 1000.0,
    "accuracy": 0.975,
    "r2": None,
    "loss": 0.08,
    "target_accuracy": 0.95,
    "time_to_accuracy": 20.0,
    "seconds": 1800.0,
    "memory": {"parameters": 2**20},
    "steps": 40,
    "epochs": 2.0,
    "step_time": {"median": 0.1, "compute": 0.06, "communication": 0.03, "waiting": 0.01},
    "per_worker": [{"rank": 0, "median": 0.1, "compute": 0.06, "communication": 0.03, "waiting": 0.01}],
    "wire": {"bytes_per_step": 8.0, "by_primitive": {"send": 8.0}, "by_axis": {}, "total": 80, "messages": 10},
    "staleness": {"mean": 0.5, "max": 1, "histogram": {"0": 1}},
    "predicted": {"bytes_per_step": 8.0, "memory": {"parameters": 4}},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, changed in {"bsp": {}, "asp": {"accuracy": 0.5, "throughput": "nan"}}.items():
        run = RunDirectory.create(tmp_path, name)
        run.append({"kind": "step", "step": 1, "time": 0.1, "loss": 1.0})
        run.write_config("seed: 0\n")
        run.write_summary({**MEASURED, "name": name, "sync": name, **changed})
    return tmp_path


def test_a_result_has_types_and_is_shown_in_a_line(root: Path) -> None:
    result = load("bsp", root)
    assert (result.name, result.accuracy, result.throughput, result.steps) == ("bsp", 0.975, 1000.0, 40)
    assert result.step_time == MeasuredStepTime(0.1, 0.06, 0.03, 0.01) == result.per_worker[0].time
    assert result.wire == Wire(8.0, {"send": 8.0}, {}, 80, 10)
    assert result.staleness is not None and result.staleness.max == 1
    assert result.predicted.memory == {"parameters": 4} and result.memory["parameters"] == 2**20
    assert result.time_to_accuracy == 20.0 and not result.modelled and result.r2 is None
    assert repr(result) == "Result(bsp: 40 steps, accuracy 97.50%, 1,000 samples/s)"
    assert "bsp" in str(result) and "<table" in result._repr_html_()
    assert load("asp", root).throughput != load("asp", root).throughput  # NaN is a text in JSON
    other = Result(
        result.path, {**result.summary, "status": "interrupted", "accuracy": None, "r2": 0.5, "modelled": True}
    )
    assert repr(other) == "Result(bsp: interrupted, 40 steps, R^2 0.5000, 1,000 samples/s (modelled))"


def test_a_result_reads_its_records_and_draws_them(root: Path) -> None:
    result = load(root / "bsp")
    assert result.curves().loss.tolist() == [1.0]
    assert result.times().loc[0, "median_s"] == 0.1
    assert "memory" in result.figures() and result.plot().name == "training-loss-time"


def test_a_run_that_goes_on_has_no_result_yet(root: Path) -> None:
    RunDirectory.create(root, "going")
    with pytest.raises(CorruptRunError, match="has no summary"):
        load("going", root)


def test_runs_are_compared_by_name_by_path_and_as_results(root: Path) -> None:
    both = compare(["bsp", load("asp", root)], root=root)
    assert [row["run"] for row in both] == ["bsp", "asp"] and len(both) == 2
    assert both["asp"]["accuracy"] == 0.5 and both.best("accuracy")["run"] == "bsp"
    assert len(compare(root=root)) == 2 and len(compare("bsp", root=root)) == len(compare(root / "bsp")) == 1
    assert repr(both).splitlines()[0].startswith("run ") and "<table" in both._repr_html_()
    assert both.frame().loc["bsp", "throughput_samples_per_s"] == 1000.0
    assert both.curves().loc["asp"].loss.tolist() == [1.0]
    assert both.plot("memory").name == "memory" and "memory" in both.figures()
    with pytest.raises(KeyError, match="there are bsp, asp"):
        both["ssp"]


def test_a_comparison_takes_what_the_command_takes(root: Path, tmp_path: Path) -> None:
    table = compare(root=root, where=["sync=bsp"], columns=["sync", "accuracy"])
    assert table.columns == ["run", "sync", "accuracy"] and len(table) == 1
    assert list(table.frame().columns) == ["sync", "accuracy"]
    assert [row["run"] for row in compare(root=root, sort="accuracy", reverse=True)] == ["asp", "bsp"]
    for baseline in ("bsp", load("bsp", root), root / "bsp"):
        one = compare(load("asp", root), baseline=baseline, root=root)
        assert [row["run"] for row in one] == ["bsp", "asp"] and one["bsp"]["speedup_throughput"] == 1.0
        assert compare(["asp", "bsp"], baseline=baseline, root=root)["bsp"]["bytes_ratio"] == 1.0
    assert compare(root=root).report(tmp_path / "page.html").stat().st_size > 10_000


def test_what_cannot_be_compared_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(RunNameError, match="there are no runs under"):
        compare(root=tmp_path / "none")
    with pytest.raises(TableError, match="no column 'acuracy'"):
        compare(root=root, sort="acuracy")
    with pytest.raises(TableError, match="the table has no rows"):
        compare(root=root, where=["accuracy>1"]).best("accuracy")


def test_the_engine_has_each_name_that_it_promises() -> None:
    assert all(hasattr(engine, name) for name in engine.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        engine.plam  # noqa: B018
