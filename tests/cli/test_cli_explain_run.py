"""`paceline explain RUN`: where its step, its memory and its bytes went, and what would help most."""

import json
import shlex
from pathlib import Path

import pytest

from paceline import engine
from paceline.engine.api.changes import LEAST, TOLD, StepShares, changes
from paceline.tracking.run_directory import RunDirectory

SMALL = ["hardware=virtual", "hardware.workers=4", "epochs=1", "batch_size=32", "tracking=none"]
GPT = [
    *("hardware=a100_8", "hardware.workers=8", "model=gpt", "data=text", "strategy=pipeline", "strategy.stages=4"),
    *("strategy.schedule=gpipe", "strategy.micro_batches=2", "batch_size=8", "optimizer=adam"),
]


@pytest.mark.slow
def test_a_run_with_a_straggler_is_explained_and_each_change_is_a_command_that_works(paceline, here: Path) -> None:
    summary = engine.run([*SMALL, "stragglers=one_slow"], name="slow", quiet=True).summary
    raw = json.loads(paceline("explain", "slow", "--format", "json").out)
    parts = [summary["step_time"][part] for part in ("compute", "communication", "waiting")]
    assert [raw["step"][part] for part in ("compute", "communication", "waiting")] == parts
    assert raw["straggler"] == 1 and raw["prediction"] is None
    assert raw["sent"]["predicted"] == raw["sent"]["measured"] == summary["wire"]["bytes_per_step"]
    first = raw["changes"][0]
    assert first["bound"] and first["speedup"] == pytest.approx(sum(parts) / (sum(parts) - parts[2]))
    assert not any(change["overrides"] == ["sync=ssp"] for change in raw["changes"])  # it would wait for it, too
    for change in raw["changes"]:
        program, *words = shlex.split(change["command"])
        assert program == "paceline" and paceline(*words, "--dry-run").status == 0
    said = paceline("explain", "slow", "--html", "slow.html")
    assert said.status == 0 and "predicted: nothing (the run has no prediction.json)" in said.out
    assert "The straggler is worker 1" in said.out and "1. sync=" in said.out and ": at most " in said.out
    page = (here / "slow.html").read_text()
    assert page.count("<svg") == 2 and "worker 1, slowest" in page and "<script" not in page
    (here / "runs" / "slow" / "prediction.json").write_text(
        json.dumps({"seconds": 1, "parts": {"compute": sum(parts)}})
    )
    again = paceline("explain", "slow").out
    assert "no prediction.json" not in again and "(+0 %): compute" in " ".join(again.split()).replace("-0 %", "+0 %")


def test_the_sentence_about_a_step_has_the_shares_of_the_table(paceline, here: Path) -> None:
    engine.run([*SMALL, "sync=asp", "stragglers=one_slow", "stragglers.factor=8"], name="uneven", quiet=True)
    raw = json.loads(paceline("explain", "uneven", "--format", "json").out)["step"]
    share = raw["compute"] / (raw["compute"] + raw["communication"] + raw["waiting"])
    said = paceline("explain", "uneven").out
    assert f"Of a step of {1e3 * raw['median']:.3g} ms, compute is {share:.0%}" in said
    assert any(line.split()[0] == "compute" and line.split()[-1] == f"{share:.0%}" for line in said.split("\n") if line)


def test_a_scripts_run_is_explained_without_a_plan_that_nobody_can_make(paceline, here: Path) -> None:
    engine.run([*SMALL, "steps=2"], name="wrapped", quiet=True)
    run = RunDirectory.open(here / "runs", "wrapped")
    run.write_environment({"wrapped": True})
    said = paceline("explain", "wrapped").out
    assert "Not known: a script trained it" in said and "--allow-module" not in said


@pytest.mark.slow
def test_predicted_changes_are_those_of_new_predictions_best_first() -> None:
    found = changes(GPT, (), StepShares(0.9, 0.0))
    assert 0 < len(found) <= TOLD and not any(change.bound for change in found)
    assert [change.speedup for change in found] == sorted((change.speedup for change in found), reverse=True)

    def rate(overrides: list[str]) -> float:
        prepared = engine.prepare(overrides)
        step = prepared.step_time(prepared.plan())
        return step.samples / step.seconds

    assert found[0].speedup >= LEAST
    assert found[0].speedup == pytest.approx(rate([*GPT, *found[0].overrides]) / rate(GPT))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        (StepShares(0.0, 0.5), [("sync=local_sgd", 2.0), ("compress=bf16", 4 / 3), ("batch_size=64", 4 / 3)]),
        (StepShares(0.5, 0.0), [("sync=backup_workers", 2.0), ("sync=asp", 2.0), ("sync=ssp", 2.0)]),
        (StepShares(0.0, 0.0), []),
    ],
)
def test_without_a_prediction_a_change_gains_at_most_what_it_is_against(shares: StepShares, expected: list) -> None:
    found = changes(["hardware=virtual", "hardware.workers=4"], (), shares)
    assert [(change.overrides[0], change.speedup) for change in found] == [
        (override, pytest.approx(speedup)) for override, speedup in expected
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing",), "no run 'nothing' under runs"),
        (("nothing", "sync=asp"), "sync=asp: overrides go with a choice"),
        (("nothing", "--svg", "a.svg"), "--svg: goes with a choice"),
    ],
)
def test_what_is_no_run_is_refused(paceline, arguments: tuple[str, ...], says: str) -> None:
    ended = paceline("explain", *arguments)
    assert (ended.status, ended.out) == (2, "") and says in ended.last
