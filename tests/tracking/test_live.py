"""How far workers are, what is told of it, and whether a run goes on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.tracking.alive import held, is_held
from paceline.tracking.live import NAME, Looks, WorkerMetrics, forget_live, read_live, write_live
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.state import DIED, state_of
from paceline.tracking.view import View

ONE = WorkerMetrics(0, "worker", 0, steps=10, sent=1000, seconds=2.0, blocked=0.5, clock=100.0, doing="computing")
START = {
    "kind": "start",
    **{"name": "first", "steps": 100, "workers": 2, "strategy": "data_parallel", "sync": "asp", "together": False},
    **{"model": "mlp", "data": "digits"},
}


def later(gauge: WorkerMetrics, steps: int, sent: int, seconds: float, blocked: float, clock: float) -> WorkerMetrics:
    return replace(
        gauge,
        steps=gauge.steps + steps,
        sent=gauge.sent + sent,
        seconds=gauge.seconds + seconds,
        blocked=gauge.blocked + blocked,
        clock=gauge.clock + clock,
    )


def test_what_is_written_is_read_and_gone_afterwards(tmp_path: Path) -> None:
    assert read_live(tmp_path) == []
    write_live(tmp_path, [ONE, replace(ONE, rank=1)])
    assert read_live(tmp_path) == [ONE, replace(ONE, rank=1)]
    forget_live(tmp_path)
    assert list(tmp_path.iterdir()) == [] and read_live(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"workers": 3}', '{"workers": [3]}', '{"workers": [{"rank": 0}]}']
    + [
        json.dumps({"workers": [{**ONE.__dict__, key: value}]})
        for key, value in [("rank", "a"), ("doing", 3), ("doing", "a" * 1001), ("clock", float("nan")), ("more", 1)]
    ],
)  # fmt: skip
def test_what_is_no_record_of_workers_is_passed_over(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)
    assert read_live(tmp_path) == []


def test_rates_are_those_between_the_first_and_the_last_look() -> None:
    looks = Looks()
    looks.add([ONE])
    [rates] = looks.rates()
    assert (rates.step_time, rates.blocked, rates.sent) == (0.2, 0.25, None)  # since it started
    looks.add([later(ONE, steps=4, sent=6000, seconds=2.0, blocked=1.5, clock=3.0)])
    [rates] = looks.rates()
    assert (rates.step_time, rates.blocked, rates.sent, rates.computing) == (0.5, 0.75, 2000.0, 0.125)


def test_who_computes_for_much_longer_than_others_with_the_same_work_is_a_straggler() -> None:
    def of(rank: int, computing: float, part: int = 0, kind: str = "worker") -> WorkerMetrics:
        return WorkerMetrics(
            rank, kind, part, steps=10, sent=0, seconds=10.0, blocked=10.0 - 10 * computing, clock=10.0
        )

    looks = Looks()
    workers = [of(0, 0.1), of(1, 0.1), of(2, 0.16), of(3, 0.9, part=1), of(4, 0.9, kind="server")]
    looks.add(workers)
    slow = {rates.now.rank: rates.slow for rates in looks.rates()}
    assert slow == {0: None, 1: None, 2: pytest.approx(1.6), 3: None, 4: None}


def test_a_run_goes_on_while_its_launcher_holds_it_and_has_died_when_nobody_does(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "first")
    run.append(START)
    with held(run.metrics):
        assert is_held(run.metrics) and state_of(run) == ("running", "")
    assert not is_held(run.metrics) and state_of(run) == ("died", DIED)
    assert not is_held(tmp_path / "nothing")
    with held(tmp_path / "nothing"):
        pass


@pytest.mark.parametrize(
    ("records", "summary", "state"),
    [
        ([{"kind": "end", "status": "failed", "reason": "no memory"}], None, ("failed", "no memory")),
        ([{"kind": "end", "status": "failed"}, {"kind": "resume", "step": 3}], None, ("died", DIED)),
        ([], {"status": "completed"}, ("completed", "")),
        ([], {"status": "interrupted", "reason": "was asked"}, ("interrupted", "was asked")),
    ],
)
def test_how_a_run_ended(
    records: list[dict[str, Any]], summary: dict[str, Any] | None, state: tuple[str, str], tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path, "first")
    for record in [START, *records]:
        run.append(record)
    if summary is not None:
        run.write_summary({"name": run.name} | summary)
    assert state_of(run) == state


def test_a_summary_that_show_takes_for_damaged_is_damaged(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "first")
    for summary in ({"status": "completed"}, {"name": "first", "status": 3}):
        run.write_summary(summary)
        state, why = state_of(run)
        assert state == "damaged" and "summary.json is damaged" in why


def drawn(view: View, width: int, encoding: str = "utf-8") -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as text:
        console.print(view.draw(width, encoding == "utf-8", encoding))
    return text.get()


@pytest.fixture
def view(tmp_path: Path) -> View:
    view = View(tmp_path)
    view.record(START)
    for step in range(1, 41):
        view.record({"kind": "step", "step": step, "loss": 1 / step, "samples_per_second": 1234.0, "step_time": 0.1})
    view.record({"kind": "evaluation", "step": 40, "accuracy": 0.875})
    one, other = ONE, replace(ONE, rank=1, blocked=1.9)
    write_live(tmp_path, [one, other])
    view.look()
    write_live(tmp_path, [later(one, 10, 2048, 2.0, 0.0, 2.0), replace(later(other, 10, 0, 2.0, 1.9, 2.0), silent=7.0)])
    view.look()
    return view


def test_a_view_shows_loss_speed_and_each_worker_and_marks_who_is_slow_or_silent(view: View) -> None:
    lines = [line.split() for line in drawn(view, 100).splitlines()]
    assert ["step", "40", "of", "100"] in [line[-4:] for line in lines]
    [loss] = [line for line in lines if line[0] == "loss"]
    assert (
        loss[1] == "0.0250" and loss[2][0] == "█" and loss[3:] == ["1,234", "samples/s", "of", "replica", "0", "alone"]
    )
    assert ["accuracy", "87.50%", "at", "step", "40"] in lines
    [one, other] = [line for line in lines if line[:1] == ["worker"]]
    assert one[:8] == ["worker", "0", "20", "200.0", "0%", "3.0", "KiB", "1.0"] and one[-5:-1] == [
        "!",
        "computes",
        "20.0x",
        "as",
    ]
    assert other[4] == "95%" and other[-5:] == ["!", "silent", "for", "7", "s"]


@pytest.mark.parametrize("width", [20, 40, 63, 64, 200])
def test_a_view_fits_its_terminal_and_its_encoding(width: int, view: View) -> None:
    text = drawn(view, width, "ascii")
    assert max(map(len, text.splitlines())) <= width
    assert all(ord(char) < 128 for line in text.splitlines() if "loss" in line for char in line)


def test_a_view_of_many_workers_shows_those_that_matter(tmp_path: Path) -> None:
    view = View(tmp_path)
    write_live(tmp_path, [replace(ONE, rank=rank, silent=9.0 if rank == 900 else 0.0) for rank in range(1000)])
    view.look()
    text = drawn(view, 100)
    assert "worker 900" in text and "worker 14 " in text and "and 984 more" in text and len(text.splitlines()) < 25


def test_records_of_another_kind_do_no_harm(tmp_path: Path) -> None:
    view = View(tmp_path)
    for record in [
        {"kind": "start", "steps": "many"},
        {"kind": "step", "step": "a"},
        {"kind": "step", "step": 3, "loss": [1], "samples_per_second": None},
        {"kind": "evaluation"},
        {"kind": "stop", "reason": "\x1b[31m"},
        {},
    ]:
        view.record(record)
    assert "step 3" in drawn(view, 80) and "\x1b" not in drawn(view, 80)
