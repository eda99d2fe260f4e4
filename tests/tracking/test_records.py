"""What a run writes is what its readers look for."""

from dataclasses import replace

from paceline.conf.groups import SHOWN
from paceline.tracking.records import (
    End,
    EvaluationRecord,
    Measured,
    MeasuredStepTime,
    PlanSummary,
    Score,
    Staleness,
    Start,
    Summary,
    Wire,
    WorkerTime,
    metric_without_column,
)
from paceline.tracking.selection import larger_first, measured
from paceline.tracking.summaries import FIELDS, from_records, row_of

CHOICES = {group.name: f"some_{group.name}" for group in SHOWN}
TIME = MeasuredStepTime(0.5, 0.25, 0.125, 0.125)
MEMORY = {kind: 2**20 for kind in (*(field.name for field in FIELDS.values() if field.section == "memory"),)}
MEASURED = Measured(
    throughput=8.0,
    step_time=TIME,
    per_worker=[WorkerTime(0, TIME)],
    memory=MEMORY,
    server_memory=None,
    wire=Wire(3.0, {"send": 3.0}, {"replica": 3.0}, 30, 4),
    staleness=Staleness(1.0, 2, {"0": 1, "2": 1}),
    dropped=1,
    lost=[3],
    too_short=False,
    given_up=2,
    cut_share=0.25,
    disturbed="the load was 4.0 on 2 cores",
    compile_s=12.5,
)
SUMMARY = Summary(
    name="one",
    choices=CHOICES,
    status="interrupted",
    workers=2,
    servers=1,
    replicas=2,
    stages=1,
    mesh={"replica": 2},
    device="cpu",
    steps=10,
    epochs=2.0,
    resumed_at=None,
    batch_size=8,
    effective_batch=6,
    measured_after=1,
    seed=0,
    modelled=False,
    event_digest=None,
    measured=MEASURED,
    score=Score("r2", 0.5, 0.25, 0.125),
    target_accuracy=0.95,
    time_to_accuracy=3.0,
    seconds=5.0,
    model_sha256=None,
    reason="was asked to stop",
    predicted=PlanSummary(3.0, {"parameters": 4}, 7.0),
    metrics={
        **{"purity": 0.6, "noise_scale": 90.0, "robust_accuracy": 0.5, "target_reached": 0.25},
        **{"client_mean": 0.7, "client_worst": 0.5, "client_spread": 0.1},
        **{"personal_mean": 0.9, "personal_worst": 0.8, "personal_spread": 0.05},
    },
    beside={
        **{"skipped_steps": 2, "weights_kept": 9, "backdoor_success": 0.5, "epsilon": 3.0, "epsilon_as_dealt": 7.0},
        **{"worker_failures": 1, "lost_work_s": 2.0, "downtime_s": 3.0, "checkpoint_s": 0.5, "goodput": 0.5},
    },
    model_bytes=4096,
)


START = Start("one", 10, 2.0, 64, 2, 0, True, False, 0.9, CHOICES)


def test_a_comparison_finds_in_a_summary_all_that_it_looks_for() -> None:
    row = row_of(SUMMARY.plain())
    assert {key for key in FIELDS if row[key] is None} == {"accuracy"}, "of two metrics, it is the other one's"
    assert row_of(replace(SUMMARY, score=Score("accuracy", 0.75, 0.1)).plain())["accuracy"] == 0.75
    assert row["step_ms"] == 500 and row["lost_workers"] == 1 and row["strategy"] == "some_strategy"
    assert SUMMARY.plain()["per_worker"] == [
        {"rank": 0, "median": 0.5, "compute": 0.25, "communication": 0.125, "waiting": 0.125, "hidden": None}
    ]


def test_what_is_not_there_has_no_key() -> None:
    assert "reason" not in replace(SUMMARY, reason=None).plain() and "reason" not in End("completed").plain()
    assert EvaluationRecord(3, 1.5, Score("accuracy", 0.5, 1.0), 2.0).plain() == {
        "kind": "evaluation",
        "step": 3,
        "epoch": 1.5,
        "accuracy": 0.5,
        "loss": 1.0,
        "time": 2.0,
    }


def test_records_and_the_summary_tell_of_a_metric_that_has_no_column() -> None:
    told = {"name": "perplexity", "larger_is_better": False}
    score = Score("perplexity", 3.5, 1.25, larger_is_better=False)
    start = replace(START, metric=metric_without_column("perplexity", False))
    records = [record.plain() for record in (start, EvaluationRecord(5, 1.0, score, 2.0))]
    for summary in (replace(SUMMARY, score=score).plain(), from_records("one", records)):
        assert (summary["metric"], summary["perplexity"]) == (told, 3.5)
        assert measured(summary)["perplexity"] == 3.5 and larger_first([summary]) == {"perplexity": False}
    assert "metric" not in SUMMARY.plain() and "metric" not in START.plain()
    undecided = [{"metric": told}, {"metric": told | {"larger_is_better": True}}]
    assert larger_first(undecided) == {} and larger_first([{"metric": told | {"larger_is_better": None}}]) == {}
    assert measured({"metric": {"name": 3}, "3": 1.0}) == {} == measured({"metric": "perplexity", "perplexity": 1.0})


def test_records_tell_of_a_run_without_a_summary() -> None:
    evaluation = EvaluationRecord(5, 1.0, Score("accuracy", 0.5, 1.0, 0.25), 2.0)
    told = from_records("one", [record.plain() for record in (START, evaluation, End("failed", "worker 1 died"))])
    row = row_of(told)
    assert (row["workers"], row["modelled"], row["sync"], row["accuracy"]) == (2, True, "some_sync", 0.5)
    assert (row["consensus_distance"], row["status"], row["why"]) == (0.25, "failed", "worker 1 died")
