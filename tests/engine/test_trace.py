"""The trace file: what it shows of made-up reports, of real processes and of a virtual cluster."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from short_runs import QUICK

from paceline import engine
from paceline.comm import Comm
from paceline.comm.timeline import Operation, TimedPass, Timeline, last_launches, split
from paceline.conf.errors import ConfigError
from paceline.engine.base.errors import MachineError
from paceline.engine.fabrics.layout import Role
from paceline.engine.training.meters import Meter, Report
from paceline.engine.training.trace import render, write_trace
from paceline.tracking.errors import StorageError

NEVER = float("-inf")
Step = tuple[float, float, int]
Event = dict[str, Any]


def report(rank: int, steps: list[Step], operations: list[Operation], **different: Any) -> Report:
    plain: dict[str, Any] = {"kind": "worker", "part": 0, "trained_steps": len(steps), "seconds": 1.0, "samples": 1}
    plain |= {"bytes": {}, "messages": {}, "memory": {}}
    return Report(**{**plain, "rank": rank, "steps": steps, "operations": operations, **different})


def as_trace(reports: list[Report], run: str, modelled: bool) -> dict[str, Any]:
    return json.loads(render(reports, run, modelled))


def complete(trace: dict[str, Any], rank: int | None = None) -> list[Event]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and rank in (None, e["tid"])]


def told(trace: dict[str, Any], rank: int) -> list[tuple[str, float, float]]:
    """(kind, start, end) of a thread's events, in seconds."""
    return [(e["cat"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in complete(trace, rank)]


def step_times(trace: dict[str, Any], rank: int) -> dict[int, float]:
    """Seconds of each step that is shown: what its events take together."""
    times: defaultdict[int, float] = defaultdict(float)
    for event in complete(trace, rank):
        times[event["args"]["step"]] += event["dur"] / 1e6
    return times


def assert_sound(trace: dict[str, Any]) -> None:
    """Sorted, in whole nanoseconds from 0 on, and no thread does two things at a time."""
    events = complete(trace)
    assert [(e["ts"], e["tid"]) for e in events] == sorted((e["ts"], e["tid"]) for e in events)
    free: defaultdict[int, int] = defaultdict(int)
    for event in events:
        start, duration = round(event["ts"] * 1000), round(event["dur"] * 1000)
        assert event["ts"] == start / 1000 and event["dur"] == duration / 1000 and duration > 0
        assert start >= free[event["tid"]]
        free[event["tid"]] = start + duration
    assert_format(trace)


def assert_format(trace: dict[str, Any]) -> None:
    """What the Trace Event Format asks of each kind of event; each flow has one start and one end, both in slices."""
    members = {
        "M": {"name", "ph", "pid", "args"},
        "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
        "s": {"name", "cat", "ph", "id", "ts", "pid", "tid"},
        "f": {"name", "cat", "ph", "id", "ts", "pid", "tid", "bp"},
    }
    flows: defaultdict[int, list[Event]] = defaultdict(list)
    for event in trace["traceEvents"]:
        assert members[event["ph"]] == event.keys() - ({"tid"} if event["ph"] == "M" else set()), event
        assert isinstance(event["name"], str) and event["name"]
        assert all(event[key] >= 0 for key in ("ts", "dur", "pid", "tid") if key in event)
        if event["ph"] in ("s", "f"):
            flows[event["id"]].append(event)
    for first, last in flows.values():
        assert (first["ph"], last["ph"], last["bp"]) == ("s", "f", "e")
        assert first["name"] == last["name"] and first["cat"] == last["cat"] == "message"
        assert first["ts"] <= last["ts"] and first["tid"] != last["tid"]
        for flow in (first, last):
            at, slices = round(flow["ts"] * 1000), complete(trace, flow["tid"])
            spans = [(round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in slices]
            assert sum(start <= at < start + duration for start, duration in spans) == 1, flow


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


# -- made-up reports


def test_a_step_is_compute_then_waiting_until_the_last_launch_then_communication() -> None:
    first = report(0, [(10.0, 14.0, 1)], [Operation("all#", 1, 11.0, 11.0, 13.5)])
    second = report(1, [(10.0, 14.0, 1)], [Operation("all#", 1, 13.0, 13.0, 13.5)])
    trace = as_trace([first, second], "mine", False)
    assert told(trace, 0) == [
        ("compute", 0.0, 1.0),
        ("waiting", 1.0, 3.0),
        ("communication", 3.0, 3.5),
        ("compute", 3.5, 4.0),
    ]
    assert told(trace, 1) == [("compute", 0.0, 3.0), ("communication", 3.0, 3.5), ("compute", 3.5, 4.0)]
    assert {e["args"].get("operation") for e in complete(trace)} == {"all#", None}


def test_between_steps_nothing_is_shown() -> None:
    evaluation = Operation("all#", 1, 2.0, 2.0, 3.0)
    trace = as_trace([report(0, [(0.0, 1.0, 1), (4.0, 5.0, 1)], [evaluation])], "mine", False)
    assert told(trace, 0) == [("compute", 0.0, 1.0), ("compute", 4.0, 5.0)]
    assert [event["args"] for event in complete(trace)] == [{"step": 1}, {"step": 2}]


def test_a_server_shows_its_operations_while_workers_train_and_nothing_between_them() -> None:
    push = Operation("g:0>1", 1, 3.0, 3.0, 3.5)
    worker = report(0, [(2.0, 6.0, 1)], [push])
    received = Operation("g:0>1", 1, NEVER, 0.0, 4.0)  # it has been waiting since before the first step
    replied = Operation("g:1>0", 1, 5.0, 5.0, 5.5)
    over = Operation("g:0>1", 2, NEVER, 5.75, 9.0)
    before = Operation("g#", 1, 0.0, 0.0, 1.0)
    server = report(1, [], [before, received, replied, over], kind="server", trained_steps=0)
    trace = as_trace([worker, server], "mine", False)
    assert told(trace, 1) == [
        ("waiting", 0.0, 1.0),
        ("communication", 1.0, 2.0),
        ("communication", 3.0, 3.5),
        ("communication", 3.75, 4.0),  # until the last step ends
    ]
    assert trace["otherData"]["shown"]["server 1"] == {"operations_shown": 3}


def messages(sent: Operation | None, received: Operation | None) -> dict[str, Any]:
    """A trace of worker 0, which sends, and worker 1, which receives, in a step of 8 s from 10 on."""
    ends = [[op] if op else [] for op in (sent, received)]
    return as_trace([report(rank, [(10.0, 18.0, 1)], ops) for rank, ops in enumerate(ends)], "mine", False)


def test_a_message_is_called_what_its_sender_calls_it_and_has_an_arrow() -> None:
    sent = Operation("g:0>1", 1, 12.0, 12.0, 13.0, "send", "push")
    received = Operation("g:0>1", 1, NEVER, 11.0, 14.0, "recv")
    trace = messages(sent, received)
    assert_sound(trace)
    named = [(e["tid"], e["name"], e["ts"] / 1e6) for e in complete(trace) if e["cat"] != "compute"]
    assert named == [(1, "waiting for push (recv)", 1.0), (0, "push (send)", 2.0), (1, "push (recv)", 2.0)]
    ends = {"operation": "g:0>1", "number": 1, "from": "worker 0", "to": "worker 1", "step": 1}
    assert all(e["args"] == ends for e in complete(trace) if e["cat"] != "compute")
    arrow = [(e["ph"], e["tid"], e["ts"]) for e in trace["traceEvents"] if e["ph"] in ("s", "f")]
    assert arrow == [("s", 0, 2e6), ("f", 1, 4e6 - 1e-3)]


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ((12.0, 13.0), None),
        (None, (11.0, 14.0)),
        ((2.0, 3.0), (11.0, 14.0)),  # before the step
        ((12.0, 13.0), (20.0, 21.0)),  # after the step
        ((16.0, 17.0), (11.0, 14.0)),  # by clocks that disagree
    ],
)
def test_a_message_of_which_one_end_is_not_shown_has_no_arrow(sent: Any, received: Any) -> None:
    trace = messages(
        sent and Operation("g:0>1", 1, sent[0], sent[0], sent[1], "send", "push"),
        received and Operation("g:0>1", 1, NEVER, received[0], received[1], "recv"),
    )
    assert_sound(trace)
    assert {e["ph"] for e in trace["traceEvents"]} == {"M", "X"}


def test_a_collective_is_called_what_it_does_and_what_for() -> None:
    operations = [
        Operation("g#", 1, 11.0, 11.0, 12.0, "all_reduce", "gradients"),
        Operation("g#", 2, 13.0, 13.0, 14.0, "barrier"),
    ]
    trace = as_trace([report(0, [(10.0, 18.0, 1)], operations)], "mine", False)
    assert [e["name"] for e in complete(trace) if e["cat"] != "compute"] == ["gradients (all_reduce)", "barrier"]


def test_what_is_computed_has_the_name_of_its_pass_and_is_cut_where_the_worker_was_blocked() -> None:
    blocked = Operation("g:0>1", 1, NEVER, 12.0, 14.0, "recv")
    passes = [
        TimedPass("0F0", 8.0, 9.0),
        TimedPass("0F1", 11.0, 15.0),
        TimedPass("0B0", 15.0, 16.0),
        TimedPass("0B1", 17.0, 20.0),
    ]
    trace = as_trace([report(0, [(10.0, 18.0, 1)], [blocked], passes=passes)], "mine", False)
    assert_sound(trace)
    found = [(e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in complete(trace) if e["cat"] == "compute"]
    assert found == [
        ("compute", 0.0, 1.0), ("0F1", 1.0, 2.0), ("0F1", 4.0, 5.0), ("0B0", 5.0, 6.0), ("compute", 6.0, 7.0),
        ("0B1", 7.0, 8.0),
    ]  # fmt: skip


def test_steps_whose_operations_are_no_longer_kept_are_left_out_and_the_trace_says_so() -> None:
    steps = [(0.0, 1.0, 1), (1.0, 2.0, 1), (2.0, 3.0, 1)]
    kept = [Operation("all#", 7, 1.5, 1.5, 2.0), Operation("all#", 8, 2.5, 2.5, 3.0)]
    trace = as_trace([report(0, steps, kept, trained_steps=9, known_from=1.5)], "mine", False)
    assert told(trace, 0) == [("compute", 0.0, 0.5), ("communication", 0.5, 1.0)]
    assert {event["args"]["step"] for event in complete(trace)} == {9}
    assert trace["otherData"]["shown"] == {"worker 0": {"steps_trained": 9, "steps_shown": 1}}


@pytest.mark.parametrize(("modelled", "clock", "process"), [(False, "measured", ""), (True, "modelled", " (modelled)")])
def test_the_process_and_every_thread_have_names_and_a_modelled_clock_is_named(
    modelled: bool, clock: str, process: str
) -> None:
    workers = [report(rank, [(0.0, 1.0, 1)], []) for rank in (2, 0, 1)]
    trace = as_trace([*workers, report(3, [], [], kind="server")], "mine", modelled)
    assert trace["otherData"]["clock"] == clock and trace["otherData"]["run"] == "mine"
    names = [e for e in trace["traceEvents"] if e["ph"] == "M"]
    assert [e["args"]["name"] for e in names if e["name"] == "process_name"] == [f"paceline mine{process}"]
    threads = {e["tid"]: e["args"]["name"] for e in names if e["name"] == "thread_name"}
    assert list(threads.items()) == [(0, "worker 0"), (1, "worker 1"), (2, "worker 2"), (3, "server 3")]
    assert {e["tid"]: e["args"]["sort_index"] for e in names if e["name"] == "thread_sort_index"} == {
        rank: rank for rank in range(4)
    }


def test_a_run_without_a_step_is_a_trace_without_events(tmp_path: Path) -> None:
    server = report(1, [], [Operation("g:0>1", 1, NEVER, 0.0, 4.0)], kind="server")
    write_trace(tmp_path / "trace.json", [report(0, [], []), server], "mine", False)
    assert complete(read(tmp_path / "trace.json")) == []


seconds = st.floats(0, 1e3)


@st.composite
def worker_reports(draw: st.DrawFn, rank: int) -> Report:
    """Steps of one worker, blocked now and then within them and between them; now and then on two things at once."""
    steps: list[Step] = []
    operations: list[Operation] = []
    now = draw(st.floats(0, 1e5))
    for _ in range(draw(st.integers(0, 4))):
        now += draw(seconds)
        start = now
        for _ in range(draw(st.integers(0, 4))):
            now += draw(seconds)
            launch = draw(st.just(NEVER) | st.just(now) | st.floats(0, 2e5))
            operations.append(Operation("w", len(operations), launch, now, now + draw(seconds)))
            now = operations[-1].end if draw(st.booleans()) else now
        now = max([now, *(operation.end for operation in operations)]) + draw(st.floats(1e-6, 1e3))
        steps.append((start, now, 1))
    return report(rank, steps, operations)


@given(worker_reports(0), worker_reports(1), st.booleans())
def test_events_of_a_thread_never_overlap_and_durations_add_up_to_the_steps(
    first: Report, second: Report, serves: bool
) -> None:
    if serves:
        second = report(1, [], second.operations, kind="server")
    trace = as_trace([first, second], "mine", False)
    assert_sound(trace)
    for worker in [first] if serves else [first, second]:
        times = step_times(trace, worker.rank)
        expected = {n: end - start for n, (start, end, _) in enumerate(worker.steps, 1)}
        assert times == pytest.approx(expected, abs=3e-9)


@given(worker_reports(0), worker_reports(1))
def test_each_share_of_a_step_is_what_the_summary_makes_of_it(first: Report, second: Report) -> None:
    second.operations = [op for op in second.operations if op.number % 2]  # some that only the first took part in
    launches = last_launches([first.operations, second.operations])
    trace = as_trace([first, second], "mine", False)
    for worker in (first, second):
        alone = sorted(worker.operations, key=lambda op: op.start)
        if any(before.end > after.start for before, after in pairwise(alone)):
            continue  # blocked on two things at once: the summary counts both
        shares: defaultdict[str, float] = defaultdict(float)
        for event in complete(trace, worker.rank):
            shares[event["cat"]] += event["dur"] / 1e6
        parts = split([(start, end) for start, end, _ in worker.steps], worker.operations, launches)
        for name in ("compute", "communication", "waiting"):
            assert shares[name] == pytest.approx(sum(getattr(part, name) for part in parts), abs=1e-6)


# -- what a meter keeps


def kept_by_a_meter(comm: Comm, kept: int, first: int) -> dict[str, Any]:
    """Nine steps of one second, with a barrier from step `first` on; the timeline keeps so many operations."""
    comm.timeline = Timeline(kept)
    meter = Meter(comm, 6, False)
    for step in range(1, 10):
        with meter.step(4):
            comm.elapse(1.0)
            if step >= first:
                comm.barrier()
    return meter.report(comm.rank, Role("worker", comm.rank, 0), {}, {}).as_json()


def test_a_meter_keeps_the_most_recent_steps_and_says_which_are_of_the_warm_up(virtual_workers: Any) -> None:
    for plain in virtual_workers(2, kept_by_a_meter, 5, 1):
        made = Report.from_json(plain)
        assert (len(made.steps), made.left_out, made.trained_steps) == (5, 2, 9)
        assert len(made.measured) == 3
        trace = as_trace([made], "mine", True)
        assert sorted(step_times(trace, made.rank)) == [6, 7, 8, 9]  # of the fifth, the oldest, who knows


def test_a_meter_leaves_out_first_steps_of_the_run_of_which_a_worker_may_take_part_in_few(
    virtual_workers: Any,
) -> None:
    """Step 1 and 5 of the run, of which six are left out, and one of those that follow."""

    def measured(comm: Comm) -> dict[str, Any]:
        meter = Meter(comm, 6, False)
        for jumped in (1, 3, 4):
            meter.jump(jumped)
            with meter.step(4):
                comm.elapse(1.0)
        return meter.report(comm.rank, Role("worker", comm.rank, 0), {}, {}).as_json()

    for plain in virtual_workers(1, measured):
        made = Report.from_json(plain)
        assert (len(made.steps), made.left_out, len(made.measured), made.jumped) == (3, 2, 1, 8)


def test_steps_before_the_first_operation_are_shown_where_all_operations_are_kept(virtual_workers: Any) -> None:
    """Local SGD computes for some steps before it communicates."""
    for plain in virtual_workers(2, kept_by_a_meter, 100, 4):
        made = Report.from_json(plain)
        assert (len(made.steps), made.left_out, len(made.whole(made.measured))) == (9, 6, 3)
        assert step_times(as_trace([made], "mine", True), made.rank).keys() == set(range(1, 10))


# -- the file


def test_the_file_is_replaced_as_a_whole_and_holds_one_event_a_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("an old one")
    reports = [report(0, [(0.0, 1.0, 1)], []), report(1, [(0.0, 2.0, 1)], [])]
    write_trace(path, reports, 'mine "quoted"', False)
    assert read(path)["otherData"]["run"] == 'mine "quoted"' and len(complete(read(path))) == 2
    events = len(read(path)["traceEvents"])
    assert len(path.read_text().splitlines()) == events + 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def test_a_file_that_cannot_be_written_is_an_error_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "trace.json"
    with pytest.raises(StorageError, match=r"gone/trace\.json") as failed:
        write_trace(path, [], "mine", False)
    assert failed.value.exit_code == 3


@pytest.mark.parametrize(
    ("file", "error", "exit_code", "words"),
    [
        ("missing/trace.json", ConfigError, 2, "no directory"),
        (".", ConfigError, 2, "a directory"),
        ("/dev/null", ConfigError, 2, "a device"),
        ("/proc/trace.json", MachineError, 3, "cannot write to /proc"),
    ],
)
@pytest.mark.parametrize("use", [engine.run, engine.prepare])
def test_a_place_that_a_trace_cannot_be_written_to_is_refused_before_anything_starts(
    use: Any, file: str, error: Any, exit_code: int, words: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=rf"--trace {file}: .*{words}") as refused:
        use(["tracking=none"], trace=file)
    assert refused.value.exit_code == exit_code
    assert not list(tmp_path.iterdir())


def test_a_link_to_itself_is_refused_as_the_place_of_a_trace(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    for file, words in {"loop": "is a link to itself", "loop/x": "there is no directory"}.items():
        with pytest.raises(ConfigError, match=rf"--trace {file}: .*{words}"):
            engine.prepare(["tracking=none"], trace=file)


def test_a_file_that_can_be_written_is_taken_and_not_yet_made(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert engine.prepare(["tracking=none"], trace="trace.json").trace == tmp_path / "trace.json"
    assert not list(tmp_path.iterdir())


# -- runs


@pytest.fixture
def traced(root: Path, tmp_path: Path, fork_server: None) -> Iterator[Any]:
    def traced(*overrides: str, name: str = "mine") -> tuple[engine.Result, dict[str, Any]]:
        path = tmp_path / f"{name}.json"
        result = engine.run([*QUICK, *overrides], name=name, root=root, quiet=True, trace=path)
        assert result is not None
        return result, read(path)

    yield traced


@pytest.mark.dist
@pytest.mark.parametrize(
    "fabric", [("hardware=local", "stragglers=one_slow"), ("hardware=virtual", "stragglers=lognormal")]
)  # workers of one speed may launch together, and then none waits
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_run_shows_every_step_of_every_worker_from_the_first_one_on(
    fabric: tuple[str, ...], sync: str, traced
) -> None:
    result, trace = traced(*fabric, f"sync={sync}", "hardware.workers=2")
    assert_sound(trace)
    modelled = fabric[0] == "hardware=virtual"
    assert trace["otherData"]["clock"] == ("modelled" if modelled else "measured")
    assert {e["cat"] for e in complete(trace)} == {"compute", "waiting", "communication"}
    said = {e["name"].partition(" (")[0] for e in complete(trace) if e["cat"] == "communication"}
    assert said == {"gradients"} if sync == "bsp" else said >= {"push", "fetch", "fetch request"}
    times: list[float] = []
    for rank in (0, 1):
        assert sorted(step_times(trace, rank)) == [1, 2, 3, 4, 5, 6]
        assert trace["otherData"]["shown"][f"worker {rank}"] == {"steps_trained": 6, "steps_shown": 6}
        times += [time for step, time in step_times(trace, rank).items() if step > 3]  # three of six are not timed
    if modelled:  # the other is too short to measure
        assert median(times) == pytest.approx(result.summary["step_time"]["median"], abs=1e-7)
    servers = {name for name in trace["otherData"]["shown"] if name.startswith("server")}
    assert servers == ({"server 2"} if sync == "asp" else set())
    if servers:
        assert {e["cat"] for e in complete(trace, 2)} == {"waiting", "communication"}
        arrows = {(e["ph"], e["name"], e["tid"] == 2) for e in trace["traceEvents"] if e["ph"] in ("s", "f")}
        assert {("s", "push", False), ("f", "push", True), ("s", "fetch", True), ("f", "fetch", False)} <= arrows


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        ("backup_workers", {"push", "fetch"}),
        ("fedavg", {"push", "fetch"}),
        ("fedbuff", {"push", "fetch"}),
        ("easgd_async", {"push", "fetch"}),
        ("easgd", {"pulls"}),
        ("gossip", {"weights"}),
        ("push_sum", {"weights"}),
        ("gossip_async", {"push"}),
        ("local_sgd", {"average"}),
    ],
)
def test_a_sync_mode_says_what_it_sends(sync: str, words: set[str], traced) -> None:
    _, trace = traced("hardware=virtual", f"sync={sync}", "hardware.workers=3", "hardware/network=ethernet_1g")
    assert_sound(trace)
    assert words <= {e["name"].partition(" (")[0] for e in complete(trace) if e["cat"] == "communication"}


@pytest.mark.dist
def test_the_same_virtual_run_has_the_same_trace_byte_for_byte(tmp_path: Path, fork_server: None) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        overrides = [*QUICK, "sync=asp", "hardware=virtual", "hardware.workers=5", "stragglers=pareto"]
        engine.run(overrides, name="mine", root=tmp_path / file.stem, quiet=True, trace=file)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.dist
def test_a_pipeline_shows_a_thread_for_each_stage(traced) -> None:
    _, trace = traced("strategy=pipeline", "hardware.workers=2", "model.hidden=[32,16]")
    assert_sound(trace)
    assert {"activations (recv)", "waiting for gradients (recv)"} <= {e["name"] for e in complete(trace)}
    for stage in (0, 1):  # each pass of each step, by its name
        passes = {f"{stage}{kind}{j}" for kind in "FB" for j in range(4)}
        for step in range(1, 7):
            names = {e["name"] for e in complete(trace, stage) if e["args"]["step"] == step and e["cat"] == "compute"}
            assert names - {"compute"} == passes


def test_each_stage_of_a_pipeline_waits_for_the_other(traced) -> None:
    _, trace = traced("strategy=pipeline", "hardware=virtual", "hardware.workers=2", "model.hidden=[32,16]")
    waits = {rank: sum(e["dur"] for e in complete(trace, rank) if e["cat"] == "waiting") for rank in (0, 1)}
    assert all(waits.values())  # the bubbles
