"""What runs recorded, as DataFrames and in a notebook."""

import builtins
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from some_runs import recorded

from paceline.tracking import display, frames
from paceline.tracking.errors import MissingPackageError, TableError
from paceline.tracking.notebook import NotebookCell
from paceline.tracking.run_data import RunData
from paceline.tracking.shown_progress import progress

STEP = {"kind": "step", "epoch": 0.5, "samples_per_second": 100.0, "step_time": 0.1}
EVALUATION = {"kind": "evaluation", "step": 2, "epoch": 1.0, "accuracy": 0.5, "loss": 1.5, "time": 0.25}


def run(*records: dict[str, Any], **summary: Any) -> RunData:
    return RunData("r", {"name": "r", "status": "completed", **summary}, {}, list(records), None)


def steps(*losses: float | str, start: int = 1) -> list[dict[str, Any]]:
    return [{**STEP, "step": start + i, "loss": loss, "time": 0.1 * (start + i)} for i, loss in enumerate(losses)]


def test_curves_have_a_row_a_step_and_nan_where_nothing_was_recorded() -> None:
    frame = frames.curves(run(*steps(3.0, 2.0), {**EVALUATION, "f1": 0.25}, *steps("nan", start=3)))
    assert list(frame.columns[:5]) == ["epoch", "time_s", "loss", "samples_per_s", "step_time_s"]
    assert {*frame.columns[5:]} == {"accuracy", "test_loss", "f1"}
    assert frame.index.name == "step" and list(frame.index) == [1, 2, 3]
    assert frame.loc[2, ["loss", "test_loss", "accuracy", "f1", "time_s"]].tolist() == [2.0, 1.5, 0.5, 0.25, 0.2]
    assert math.isnan(frame.loc[3, "loss"]) and math.isnan(frame.loc[1, "accuracy"])
    assert frame.loss.dtype == "float64" and frame.index.dtype == "int64"


def test_steps_that_a_resumed_run_made_again_count_once() -> None:
    frame = frames.curves(run(*steps(3.0, 2.0, 1.0), {"kind": "resume", "step": 1}, *steps(9.0, start=2)))
    assert frame.loss.tolist() == [3.0, 9.0]


def test_a_run_without_records_has_empty_curves_and_no_times() -> None:
    frame = frames.curves(run())
    assert frame.empty and list(frame.columns) == ["epoch", "time_s", "loss", "samples_per_s", "step_time_s"]
    assert frames.workers(run()).empty
    assert frames.curves_of_all([]).empty


def test_curves_of_several_runs_are_indexed_by_run_and_step() -> None:
    frame = frames.curves_of_all([recorded("a", points=3), recorded("b", points=2)])
    assert frame.index.names == ["run", "step"]
    assert [len(frame.loc[name]) for name in ("a", "b")] == [3, 2]


def test_times_are_by_worker() -> None:
    told = [
        {"rank": rank, "median": 0.1 * rank, "compute": None, "communication": 0.0, "waiting": 0.0} for rank in (1, 2)
    ]
    frame = frames.workers(run(per_worker=told))
    assert frame.index.tolist() == [1, 2] and frame.median_s.tolist() == [0.1, 0.2]
    assert frame.compute_s.isna().all()


def test_a_table_keeps_types_and_indexes_by_run() -> None:
    rows = [{"run": "a", "workers": 2, "loss": "nan", "sync": "bsp", "lost": [], "modelled": False}]
    frame = frames.table(rows)
    assert frame.loc["a", "workers"] == 2 and frame.workers.dtype == "int64"
    assert math.isnan(frame.loc["a", "loss"]) and frame.loss.dtype == "float64"
    assert frame.loc["a", "sync"] == "bsp" and frame.loc["a", "lost"] is None


def test_without_pandas_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without_pandas(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(MissingPackageError, match=r"pip install 'paceline\[pandas\]'") as error:
        frames.curves(run())
    assert error.value.exit_code == 3


def test_a_table_in_html_shows_text_as_text() -> None:
    html = display.table([{"run": "<b>&\u202e", "modelled": False, "status": "completed", "accuracy": 0.5}])
    assert "&lt;b&gt;&amp;\\u202e" in html and "<b>" not in html
    assert "50.00%" in html and html.count("<tr>") == 2


def test_a_figure_is_found_by_its_name_or_its_beginning_and_is_the_same_each_time(tmp_path: Path) -> None:
    runs = [recorded("a"), recorded("b", number=1)]
    first = display.plot(runs, "accuracy")
    assert first.name == "accuracy-time" and first.svg == display.plot(runs, "accuracy-time").svg
    assert first._repr_svg_().count("<svg") == 1
    assert display.plot(runs, "training loss-epochs").name == "training-loss-epochs"
    assert display.plot(runs, "x=workers y=accuracy name=lr").name == "lr"
    with pytest.raises(TableError, match="plot 'acuracy-time': these runs have no such figure; did you mean accuracy"):
        display.plot(runs, "acuracy-time")
    with pytest.raises(TableError, match="x=r2 y=accuracy: no run was completed and has both x and y"):
        display.plot(runs, "x=r2 y=accuracy")
    assert first.save(tmp_path / "a.svg").read_text() == first.svg


def test_measured_and_modelled_runs_have_figures_of_their_own() -> None:
    names = [*display.pictures([recorded("a"), recorded("b", modelled=True)])]
    assert "throughput" in names and "modelled-throughput" in names


# -- progress


class Handle:
    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, bundle: dict[str, str], raw: bool, display_id: bool) -> "Handle":
        self.shown.append(bundle)
        return self

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        self.shown.append(bundle)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    handle = Handle()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=handle.display))
    return handle


def test_a_notebook_gets_one_line_in_place_and_a_terminal_of_ipython_does_not(
    handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(progress(Path("run")), NotebookCell)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not isinstance(progress(Path("run")), NotebookCell)


def test_the_line_says_how_far_it_is_and_is_not_updated_all_the_time(handle: Handle) -> None:
    cell = NotebookCell(seconds_between=1e9)
    cell.record({"kind": "start", "name": "<first>", "steps": 4})
    for record in [*steps(3.0, 2.0, 1.0), EVALUATION]:
        cell.record(record)
    assert len(handle.shown) == 1  # as it began
    cell.record({"kind": "end", "status": "completed"})
    cell.close(None)
    assert len(handle.shown) == 2
    text, html = handle.shown[-1]["text/plain"], handle.shown[-1]["text/html"]
    assert text == "<first>\ncompleted  3/4 steps  loss 1.0000  100 samples/s  accuracy 50.00% at step 2"
    assert "&lt;first&gt;" in html and "<progress" not in html

    going = NotebookCell(seconds_between=0.0)
    going.record({"kind": "start", "name": "first", "steps": 4})
    going.record(steps(3.0)[0])
    assert '<progress value="1" max="4">' in handle.shown[-1]["text/html"]
