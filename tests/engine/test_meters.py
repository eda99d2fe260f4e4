"""What all workers' measures make of a run, from made-up reports."""

import json
from typing import Any

import pytest

from paceline.comm.timeline import Operation
from paceline.engine.fabrics.layout import RunLayout
from paceline.engine.training.meters import Report, is_too_short, summarise, without_times
from paceline.strategies.core.mesh import Mesh

MEMORY = {"parameters": 8, "gradients": 8, "activations": 3, "process_peak": 100}


def report(rank: int = 0, **different: Any) -> Report:
    plain: dict[str, Any] = {
        "rank": rank,
        "kind": "worker",
        "part": 0,
        "steps": [],
        "operations": [],
        "trained_steps": 10,
        "seconds": 1.0,
        "samples": 100,
        "bytes": {},
        "messages": {},
        "memory": MEMORY,
    }
    return Report(**{**plain, **different})


def told(reports: list[Report], layout: RunLayout) -> dict[str, Any]:
    """As the summary has it."""
    return summarise(reports, layout).plain()


TWO = RunLayout(Mesh({"replica": 2}), servers=0, loss_part=0)


def test_throughput_is_all_samples_over_the_slowest_replicas_steps_and_leaves_out_what_lies_between() -> None:
    first = report(0, steps=[(0.0, 1.0, 10), (5.0, 6.0, 10)])  # four seconds of evaluation in between
    second = report(1, steps=[(0.0, 2.0, 10), (5.0, 7.0, 10)])
    assert told([first, second], TWO)["throughput"] == (20 + 20) / 4.0


def test_where_replicas_take_turns_throughput_is_all_samples_over_the_time_of_all() -> None:
    """As clients of FedAvg do: a replica's own steps take less time than those of all, or none, as the third's do."""
    first = report(0, steps=[(0.0, 1.0, 10), (1.0, 3.0, 10)], trained_steps=2, jumped=2, left_out=1)
    second = report(1, steps=[(4.0, 6.0, 30)], trained_steps=1, jumped=3)
    third = report(2, steps=[], trained_steps=0, jumped=4)
    layout = RunLayout(Mesh({"replica": 3}), servers=0, loss_part=0)
    assert told([first, second, third], layout)["throughput"] == (10 + 30) / 5.0


def test_where_replicas_take_turns_steps_that_are_no_longer_kept_are_in_neither_the_samples_nor_the_time() -> None:
    first = report(0, steps=[(4.0, 5.0, 10), (5.0, 6.0, 10)], trained_steps=6, jumped=1)
    second = report(1, steps=[(0.0, 3.0, 50), (6.0, 8.0, 10)], trained_steps=2, jumped=5)
    assert told([first, second], TWO)["throughput"] == (20 + 10) / 4.0


def test_where_replicas_take_turns_and_none_has_trained_throughput_is_0() -> None:
    assert told([report(trained_steps=0, jumped=3)] * 2, TWO)["throughput"] == 0.0


def test_steps_that_take_no_time_have_nothing_to_do_and_are_no_steps_to_time() -> None:
    """On a modelled clock, of a replica whose part is through while others go on."""
    through = [(1.0, 2.0, 10), *[(2.0, 2.0, 0)] * 8]
    found = told([report(0, steps=[(1.0, 2.0, 10)] * 9), report(1, steps=through), report(2, steps=through)], TWO)
    assert found["step_time"]["median"] == 1.0
    assert [worker["median"] for worker in found["per_worker"]] == [1.0, 1.0, 1.0]


def test_the_split_adds_up_to_the_median_and_tells_each_worker() -> None:
    """One worker in eight steps communicates in one only: a median of the parts would lose that."""
    steps = [(float(t), float(t + 1), 1) for t in range(8)]
    rare = [Operation("all#", 1, 0.5, 0.5, 1.0)]
    found = told([report(0, steps=steps, operations=rare), report(1, steps=steps, operations=rare)], TWO)
    row = found["step_time"]
    assert row["communication"] == 0.5 / 8 and row["compute"] == 1 - 0.5 / 8
    assert [worker["rank"] for worker in found["per_worker"]] == [0, 1]


def test_throughput_counts_a_replicas_samples_once_however_many_stages_it_has() -> None:
    layout = RunLayout(Mesh({"replica": 2, "stage": 2}), servers=0, loss_part=1)
    reports = [report(rank, part=rank % 2, steps=[(0.0, 1.0, 10)]) for rank in range(4)]
    assert told(reports, layout)["throughput"] == 20.0


def test_step_time_is_split_by_who_was_waited_for() -> None:
    """Worker 0 launches at 1 and waits for worker 1, which launches at 3; the exchange itself takes 1."""
    first = report(0, steps=[(0.0, 4.0, 1)], operations=[Operation("all#", 1, 1.0, 1.0, 4.0)])
    second = report(1, steps=[(0.0, 4.0, 1)], operations=[Operation("all#", 1, 3.0, 3.0, 4.0)])
    assert told([first, second], TWO)["step_time"] == {
        "median": 4.0,
        "compute": (1.0 + 3.0) / 2,
        "communication": 1.0,
        "waiting": (2.0 + 0.0) / 2,
        "hidden": 0.0,
    }


def test_steps_older_than_the_kept_operations_are_timed_but_not_split() -> None:
    """The timeline keeps the most recent operations: an older step would look as if it had only computed."""
    steps = [(0.0, 2.0, 1), (8.0, 10.0, 1), (11.0, 13.0, 1)]
    operations = [Operation("all#", 3, 11.0, 11.0, 12.0)]

    def times(known_from: float) -> dict[str, float | None]:
        reports = [report(rank, steps=steps, operations=operations, known_from=known_from) for rank in (0, 1)]
        return told(reports, TWO)["step_time"]

    assert times(11.0) == {"median": 2.0, "compute": 1.0, "communication": 1.0, "waiting": 0.0, "hidden": 0.0}
    assert times(12.0) == {"median": 2.0, "compute": None, "communication": None, "waiting": None, "hidden": None}


def test_steps_without_an_operation_have_only_computed() -> None:
    """As between the exchanges of local SGD; also before the first one."""
    steps = [(0.0, 2.0, 1), (2.0, 4.0, 1)]
    operations = [Operation("all#", 1, 3.0, 3.0, 4.0)]
    times = told([report(rank, steps=steps, operations=operations) for rank in (0, 1)], TWO)["step_time"]
    assert times == {"median": 2.0, "compute": 2.0 * 3 / 4, "communication": 2.0 * 1 / 4, "waiting": 0.0, "hidden": 0.0}


def test_warm_up_steps_are_left_out_of_throughput_and_step_times() -> None:
    steps = [(0.0, 9.0, 10), (9.0, 10.0, 10), (10.0, 11.0, 10)]
    summary = told([report(rank, steps=steps, left_out=1) for rank in (0, 1)], TWO)
    assert summary["throughput"] == 20.0 and summary["step_time"]["median"] == 1.0


def test_a_run_shorter_than_its_warm_up_has_no_times_and_no_division_by_zero() -> None:
    summary = told([report(0, trained_steps=0), report(1, trained_steps=0)], TWO)
    assert summary["throughput"] == 0.0
    assert summary["step_time"] == {
        "median": None,
        "compute": None,
        "communication": None,
        "waiting": None,
        "hidden": None,
    }
    assert summary["wire"] == {"bytes_per_step": 0.0, "by_primitive": {}, "by_axis": {}, "total": 0, "messages": 0}


@pytest.mark.parametrize(
    ("steps", "seconds", "left_out", "short"),
    [(10, 0.011, 0, False), (9, 1.0, 0, True), (10, 0.009, 0, True), (12, 0.011, 3, True), (0, 1.0, 0, True)],
)
def test_a_run_is_too_short_with_fewer_than_10_timed_steps_or_under_a_tenth_of_a_second(
    steps: int, seconds: float, left_out: int, short: bool
) -> None:
    timed = report(steps=[(i, i + seconds, 1) for i in range(steps)], left_out=left_out)
    idle = report(1)  # a client that no round took
    assert is_too_short([idle, timed]) is short
    found = without_times(summarise([timed, idle], TWO)).plain()
    assert found["too_short"] is True and found["throughput"] is None and set(found["step_time"].values()) == {None}


def test_memory_is_the_largest_workers_kind_by_kind_without_servers() -> None:
    reports = [
        report(0, memory={**MEMORY, "activations": 7}),
        report(1, memory={**MEMORY, "parameters": 9}),
        report(2, kind="server", memory={**MEMORY, "parameters": 99}),
    ]
    memory = told(reports, RunLayout(Mesh({"replica": 2}), servers=1, loss_part=0))["memory"]
    assert memory == {**MEMORY, "activations": 7, "parameters": 9}


def test_a_workers_step_is_charged_its_share_of_what_servers_sent() -> None:
    reports = [
        report(0, bytes={"send": 100}, messages={"send": 2}),
        report(1, bytes={"send": 100}, messages={"send": 3}),
        report(2, kind="server", trained_steps=0, bytes={"send": 400, "broadcast": 20}),
    ]
    wire = told(reports, RunLayout(Mesh({"replica": 2}), servers=1, loss_part=0))["wire"]
    by_primitive = {"send": 30.0, "broadcast": 1.0}
    assert wire == {"bytes_per_step": 31.0, "by_primitive": by_primitive, "by_axis": {}, "total": 620, "messages": 5}


def test_staleness_is_pooled_over_servers() -> None:
    reports = [
        report(0),
        report(1, kind="server", sync={"staleness": {"0": 2, "1": 1}}),
        report(2, kind="server", sync={"staleness": {"1": 3, "4": 2}}),
    ]
    staleness = told(reports, RunLayout(Mesh({"replica": 1}), servers=2, loss_part=0))["staleness"]
    assert staleness == {"mean": (4 * 1 + 2 * 4) / 8, "max": 4, "histogram": {"0": 2, "1": 4, "4": 2}}
    assert told([report(0)], RunLayout(Mesh({"replica": 1}), servers=0, loss_part=0))["staleness"] is None


@pytest.mark.parametrize("operations", [[], [Operation("all#", 1, float("-inf"), 0.5, 1.0)]])
def test_a_report_survives_its_json(operations: list[Operation]) -> None:
    made = report(3, steps=[(0.0, 1.0, 4)], operations=operations, bytes={"send": 3}, sync={"staleness": {"0": 1}})
    read = Report.from_json(json.loads(json.dumps(made.as_json())))
    assert read.operations == made.operations
    assert [tuple(step) for step in read.steps] == made.steps
    assert told([read], TWO)["wire"] == told([made], TWO)["wire"]
