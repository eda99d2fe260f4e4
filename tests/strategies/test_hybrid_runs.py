"""Whole runs of stages of several workers: bytes and memory as predicted, resumed, and on the virtual clock."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from oracles import distance, identical
from process_table import until, workers_of
from whole_runs import trained

from paceline.engine import prepare
from paceline.engine.base.checkpoint import steps_of
from paceline.engine.base.errors import WorkerFailedError
from paceline.engine.config.compose import compose

pytestmark = pytest.mark.dist

MLP = ("tracking=none", "model.hidden=[16,16,12]", "data.limit=64", "batch_size=8", "steps=6")
GPT = ("tracking=none", "model=gpt", "model.n_layer=2", "model.n_head=2", "model.width=16", "data=text")
SMALL = (*GPT, "data.context=8", "data.limit=32", "batch_size=4", "steps=4", "model.dropout=0.1")
TIED = (*SMALL, "model.tied=true")
TWO_BY_TWO = ("strategy=hybrid", "strategy.schedule=1f1b")
SLICES, STALE = ("strategy.sequence=true",), ("strategy.schedule=pipedream",)
REAL = ("hardware.threads=1", "hardware.device=cpu", "hardware.timeout=60")


@pytest.fixture(autouse=True)
def here(fork_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def as_predicted(summary: dict) -> bool:
    return summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"])


@pytest.mark.slow
def test_the_preset_is_two_replicas_of_two_by_two_on_two_hosts_and_trains_as_one_worker():
    weights, told = trained("experiment=hybrid_2x2x2", *MLP, "batch_size=4")
    assert told["mesh"] == {"replica": 2, "stage": 2, "tensor": 2} and as_predicted(told)
    alone, _ = trained("strategy=single", "hardware=virtual", *MLP, "batch_size=8")
    assert distance(weights, alone) < 1e-5  # float32


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "optimizer", "gradients"])
@pytest.mark.parametrize(
    "model",
    [
        SMALL,
        (*SMALL, "strategy.vocabulary=false"),
        (*SMALL, *SLICES),
        TIED,
        (*TIED, "strategy.vocabulary=false"),
        (*TIED, *SLICES),
        (*TIED, *SLICES, "strategy.schedule=zb_h1"),
        (*TIED, *SLICES, "strategy.recompute=true"),
    ],
    ids=["pieces", "whole", "slices", "tied", "tied whole", "tied slices", "tied slices zb", "tied slices recomputed"],
)
def test_a_gpt_with_dropout_trains_on_two_by_two_by_two(model, shard):
    weights, told = trained(
        *TWO_BY_TWO, *model, "hardware=virtual", "hardware.workers=8", f"sync.shard={shard}", "optimizer=adam"
    )
    assert as_predicted(told) and told["stages"] == 2
    assert all(torch.isfinite(each).all() for each in weights.values())
    kinds = ("parameters", "gradients", "optimizer", "activations", "buffers")
    exact = 0 if shard == "none" else 0.05  # of a share of the optimizer's state, as of any
    for kind in kinds:
        assert told["memory"][kind] == pytest.approx(told["predicted"]["memory"][kind], rel=exact), kind


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(MLP, (), marks=pytest.mark.slow),
        pytest.param(SMALL, (), marks=pytest.mark.slow),
        pytest.param(MLP, ("strategy.tensor=1",), marks=pytest.mark.slow),
        pytest.param(TIED, SLICES, marks=pytest.mark.slow),
        pytest.param(TIED, ("strategy.tensor=1",), marks=pytest.mark.slow),
        pytest.param((*SMALL, "strategy.vocabulary=false"), SLICES, marks=pytest.mark.slow),
        pytest.param(SMALL, STALE, marks=pytest.mark.slow),
        pytest.param(SMALL, (*STALE, "strategy.tensor=1"), marks=pytest.mark.slow),
    ],
    ids=[
        "mlp 1 x 2 x 2",
        "gpt 1 x 2 x 2",
        "mlp 2 x 2 x 1",
        "tied gpt in slices 1 x 2 x 2",
        "tied gpt 2 x 2 x 1",
        "gpt in slices 1 x 2 x 2",
        "pipedream 1 x 2 x 2",
        "pipedream 2 x 2 x 1",
    ],
)
def test_four_processes_send_what_is_predicted_and_a_resumed_run_equals_the_whole_one_bit_for_bit(model, shape):
    grid = (*model, *TWO_BY_TWO, *shape, "hardware.workers=4", "steps=4")
    how = (*grid, *REAL, "checkpoint.every_steps=2")
    whole, told = trained(*how)
    assert as_predicted(told)
    trained(*how, "steps=2", name="half")
    assert identical(trained("steps=4", resume="half")[0], whole)
    virtual, _ = trained(*grid, "hardware=virtual")
    straight = trained(*grid, *REAL)[0] if STALE[0] in shape else whole  # no checkpoint drains it
    assert distance(virtual, straight) < 1e-5  # sums come in another order
    checkpoint = "weights=runs/half/checkpoints/step-00000004"
    alike = [each for each in model if not each.startswith("strategy.")]
    begun, _ = trained(*alike, "strategy=single", "hardware=virtual", "steps=1", "optimizer.lr=1e-30", checkpoint)
    assert distance(begun, whole) < 1e-6


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize(
    ("model", "shape"),
    [(TIED, SLICES), (TIED, ("strategy.tensor=1",)), (SMALL, STALE)],
    ids=["tied gpt in slices 1 x 2 x 2", "tied gpt 2 x 2 x 1", "pipedream 1 x 2 x 2"],
)
def test_a_run_whose_worker_is_killed_goes_on_bit_for_bit(model, shape):
    how = (*model, *TWO_BY_TWO, *shape, *REAL, "hardware.workers=4", "steps=80", "epochs=100")
    how = (*how, "checkpoint.every_steps=4", "evaluate.every=50")
    victim = Path("runs/victim").resolve()

    def kill() -> None:
        until(lambda: victim.exists() and steps_of(victim / "checkpoints"), 120.0, "a checkpoint")
        os.kill(workers_of(victim)[2], signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill)
        with pytest.raises(WorkerFailedError, match=r"worker 2, after step .* was killed by SIGKILL; saved: step-"):
            trained(*how, name="victim")
        killed.result()
    assert identical(trained(resume="victim")[0], trained(*how)[0])


ON_THE_CLOCK = {
    "pieces": ((), "gpipe", "1f1b", "zb_h1"),
    "head whole": (("strategy.vocabulary=false",), "gpipe", "1f1b", "zb_h1"),
    "slices": (SLICES, "gpipe", "1f1b", "zb_h1"),
    "recomputed": (("strategy.recompute=true",), "gpipe", "1f1b"),  # zb_h1: docs/log.md
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "schedule"),
    [
        pytest.param(model, schedule, id=f"{name} {schedule}")
        for name, (model, *schedules) in ON_THE_CLOCK.items()
        for schedule in schedules
    ],
)
def test_a_step_of_a_gpt_on_the_virtual_clock_takes_about_what_the_plan_says(model, schedule):
    how = (*GPT, "model.width=64", "data.limit=64", "batch_size=8", "steps=6", "strategy=hybrid", *model)
    how = (*how, f"strategy.schedule={schedule}", "hardware=virtual", "hardware.workers=4")
    how = (*how, "hardware.workers_per_host=2", "measure.after=1")
    timetable = prepare([*how]).timetable()
    assert timetable is not None
    _, told = trained(*how)
    assert told["step_time"]["median"] == pytest.approx(timetable.simulation.seconds, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1"])
def test_a_step_on_the_virtual_clock_takes_what_the_plan_says(schedule):
    """One replica, whose workers share no link: the passes, their sums and the messages, then the update."""
    how = (*MLP, "model.hidden=[64,64,64]", "strategy=hybrid", f"strategy.schedule={schedule}", "hardware=virtual")
    how = (*how, "hardware.workers=4", "hardware.workers_per_host=2", "measure.after=1")
    timetable = prepare([*how]).timetable()
    assert timetable is not None and timetable.seconds
    _, told = trained(*how)
    assert told["step_time"]["median"] == pytest.approx(timetable.simulation.seconds, rel=0.02)
    parts = prepare([*how, "strategy.tensor=1", "hardware.workers=2"]).timetable()
    assert parts is not None and parts.simulation.seconds != timetable.simulation.seconds


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("hardware.workers=6",), "hardware.workers=6: strategy=hybrid lays one replica over 4 workers.* 4 or 8"),
        (("strategy.stages=9",), "strategy.stages=9: the model has 8 layers .* Choose strategy.stages <= 4"),
        (("strategy.tensor=5",), "strategy.tensor=5: 1. outputs of the layer .* Choose"),
        (
            ("model.hidden=[16]", "strategy.cut=[2]"),
            "tensor=2: no stage has two linear layers .* Choose strategy.tensor=1",
        ),
        (("strategy.schedule=zb_h",), "strategy.schedule=zb_h: did you mean zb_h1"),
        (
            ("strategy.schedule=interleaved", "strategy.micro_batches=5"),
            "micro_batches=5: .*nearest that fit are 4 and 6",
        ),
        (("hardware.workers=8", "sync=asp"), "strategy=hybrid: holds some parameters whole on several workers"),
        (
            ("hardware.workers=8", "compress=topk"),
            "strategy=hybrid: holds some parameters whole on several workers of a",
        ),
        (("hardware.workers=8", "optimizer=muon"), "strategy=hybrid: a worker steps on pieces of tensors"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_laid_out_is_refused_before_anything_starts(overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*MLP, "strategy=hybrid", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


@pytest.mark.slow
def test_a_pipeline_of_one_tensor_worker_takes_what_a_pipeline_takes():
    for overrides in (("sync=asp",), ("compress=topk",), ("optimizer=muon",)):
        plan = prepare([*MLP, "strategy=hybrid", "strategy.tensor=1", "hardware.workers=4", *overrides]).plan()
        assert plan.layout.parts == 2


def test_a_schedule_of_ones_own_is_kept_in_the_run():
    Path("own.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    overrides = [*MLP, "strategy=hybrid", "strategy.schedule=own.csv", "strategy.micro_batches=2", "hardware=virtual"]
    assert prepare(overrides).experiment.strategy.knobs["schedule"] == ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]
    assert compose(["strategy=hybrid"]).strategy.knobs["tensor"] == 2
