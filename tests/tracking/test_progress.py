import io
import re
import subprocess
import sys
from typing import Any

import pytest

from paceline.engine.training.meters import Report, _throughput
from paceline.tracking.progress import ProgressLines, Speed, evaluation_text
from paceline.tracking.shown_progress import progress
from paceline.tracking.view import LiveView, View

START = {
    "kind": "start",
    "name": "first",
    "steps": 100,
    "epochs": 2,
    "samples": 1000,
    "workers": 4,
    "strategy": "data_parallel",
    "sync": "ssp",
    "model": "mlp",
    "data": "digits",
}
EVALUATION = {"kind": "evaluation", "step": 50, "epoch": 1.0, "accuracy": 0.875, "loss": 0.4, "time": 1.0}
END = {"kind": "end", "status": "completed"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(number: int, loss: Any = 0.25) -> dict[str, Any]:
    return {"kind": "step", "step": number, "loss": loss, "samples_per_second": 1234.5, "step_time": 0.1}


def shown(sink, records) -> None:
    for record in records:
        sink.record(record)
    sink.close(None)


def test_a_terminal_gets_a_view_and_anything_else_gets_lines(monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(progress(tmp_path, Terminal()), LiveView)
    assert isinstance(progress(tmp_path, Terminal(), plain=True), ProgressLines)
    assert isinstance(progress(tmp_path, io.StringIO()), ProgressLines)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(progress(tmp_path), ProgressLines)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress(tmp_path, Terminal()), ProgressLines)


def test_lines_are_one_on_start_one_an_evaluation_and_one_at_the_end():
    stream = io.StringIO()
    shown(ProgressLines(stream), [START, *map(step, range(1, 51)), EVALUATION, *map(step, range(51, 101)), END])
    assert stream.getvalue().splitlines() == [
        "first: mlp on digits, data_parallel + ssp, 4 workers, 100 steps",
        "step 50  accuracy 87.50%",
        "completed",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mine": 0.123456, "robust_accuracy": 0.5}, "accuracy 87.50%  mine 0.1235"),
        ({"accuracy": None, "perplexity": 2.5, "mine": 12345.6}, "perplexity 2.5  mine 1.235e+04"),
        ({"perplexity": "nan"}, "accuracy 87.50%  perplexity nan"),
        ({"accuracy": None}, "loss 0.4000"),
        ({f"m{i}": i for i in range(9)}, "accuracy 87.50%  m0 0  m1 1  m2 2"),
    ],
)
def test_metrics_of_tasks_and_callbacks_are_told_as_the_comparison_names_them(changes, said):
    evaluation = {key: value for key, value in (EVALUATION | changes).items() if value is not None}
    assert evaluation_text(evaluation) == said


def test_evaluations_of_earlier_steps_are_said_to_come_afterwards():
    """An asynchronous run judges its snapshots when it is over."""
    stream = io.StringIO()
    last = EVALUATION | {"step": 100, "accuracy": 0.9}
    shown(ProgressLines(stream), [START, *map(step, range(1, 101)), EVALUATION, last, END])
    assert stream.getvalue().splitlines()[1:] == [
        "step 50  accuracy 87.50% (evaluated afterwards)",
        "step 100  accuracy 90.00%",
        "completed",
    ]


def test_a_virtual_cluster_is_said_to_be_modelled():
    stream = io.StringIO()
    shown(ProgressLines(stream), [START | {"modelled": True}])
    assert stream.getvalue() == "first: mlp on digits, data_parallel + ssp, 4 workers (modelled), 100 steps\n"
    stream = io.StringIO()
    shown(ProgressLines(stream), [START | {"modelled": False}])
    assert "modelled" not in stream.getvalue()


def test_step_lines_keep_their_distance_in_time(monkeypatch):
    now = 0.0
    monkeypatch.setattr("paceline.tracking.progress.time.monotonic", lambda: now)
    stream = io.StringIO()
    lines = ProgressLines(stream)
    lines.record(START)
    for number in range(1, 101):
        now = number * 0.2  # 20 s in all
        lines.record(step(number))
    assert stream.getvalue().splitlines()[1:] == [
        f"step {number}/100  loss 0.2500  1,234 samples/s" for number in (25, 50, 75, 100)
    ]


def test_the_speed_is_what_the_table_would_say_of_the_last_steps(tmp_path):
    """Samples over time, of `RECENT` steps: not the last step's, nor a mean of rates."""
    steps = [step(i) | {"samples_per_second": 64 / t, "step_time": t} for i, t in enumerate([9.0, *[1.0, 0.1] * 10])]
    timed = [(0.0, each["step_time"], 64) for each in steps[1:]]
    table = _throughput([Report(0, "worker", 0, timed, [], 20, 0.0, 0, {}, {}, {})])
    speed, view, stream = Speed(), View(tmp_path), io.StringIO()
    for record in steps:
        speed.add(record)
        view.record(record)
    speed.add({"kind": "step", "samples_per_second": "nan", "step_time": 1.0})  # another version's
    speed.add({"kind": "step", "samples_per_second": 10**300, "step_time": 1e300})
    speed.add({"kind": "step", "samples_per_second": 10**400, "step_time": 1.0})
    assert speed.value == view.plain()["samples_per_second"] == pytest.approx(table)
    shown(ProgressLines(stream, seconds_between=0), [START, *steps])
    assert stream.getvalue().endswith(f"step 20/100  loss 0.2500  {table:,.0f} samples/s\n")


def test_where_replicas_go_at_their_own_paces_the_speed_is_said_to_be_of_one(tmp_path):
    stream = io.StringIO()
    shown(ProgressLines(stream, seconds_between=0), [START | {"together": False}, step(1)])
    assert stream.getvalue().endswith("1,234 samples/s of replica 0 alone\n")


def test_lines_tell_of_a_resume_and_of_a_stop():
    stream = io.StringIO()
    shown(ProgressLines(stream), [{"kind": "resume", "step": 7}, {"kind": "stop", "reason": "target reached"}])
    assert stream.getvalue() == "resumed at step 7\nstopping: target reached\n"


def test_a_loss_that_is_not_finite_and_one_that_is_unknown_are_shown():
    stream = io.StringIO()
    shown(ProgressLines(stream, seconds_between=0), [START, step(1, "nan"), step(2, None)])
    assert "loss nan" in stream.getvalue() and "loss -" in stream.getvalue()


def test_an_unknown_kind_of_record_is_passed_over_by_both(tmp_path):
    for sink in (ProgressLines(io.StringIO()), LiveView(tmp_path, Terminal())):
        shown(sink, [START, {"kind": "checkpoint", "step": 1}, {"kind": "from the future"}])


def view_text(monkeypatch, directory, records) -> str:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    shown(LiveView(directory, stream), records)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


def test_the_view_shows_the_step_loss_speed_and_last_accuracy(monkeypatch, tmp_path):
    plain = view_text(monkeypatch, tmp_path, [START, step(50), EVALUATION, step(60), END])
    assert "first: mlp on digits, data_parallel + ssp, 4 workers" in plain
    last = plain.rpartition("step 60 of 100")[2]
    assert last and "loss 0.2500" in last and "1,234 samples/s" in last and "accuracy 87.50% at step 50" in last


@pytest.mark.parametrize(("no_color", "styled"), [("1", False), ("", True)])
def test_no_color_leaves_no_colour_and_nothing_bold(no_color, styled, monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    shown(LiveView(tmp_path, stream), [START, step(50), END])
    assert bool(re.search(r"\x1b\[[0-9;]*m", stream.getvalue())) == styled


def test_a_line_of_the_launcher_stands_above_the_view_and_the_cursor_is_never_hidden(monkeypatch, tmp_path):
    """As when a worker dies and the others go on."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    view = LiveView(tmp_path, stream)
    view.record(START)
    print("worker 1 was killed by SIGKILL; training goes on without it", file=sys.stderr, flush=True)
    view.close(None)
    assert sys.stderr is stream and "\x1b[?25l" not in stream.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "worker 1 was killed by SIGKILL; training goes on without it" in re.split("[\r\n]+", plain)


def test_rich_is_not_imported_without_a_terminal():
    script = (
        "import io, sys; from paceline.tracking.shown_progress import progress; progress('runs/a', io.StringIO());"
        "print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
