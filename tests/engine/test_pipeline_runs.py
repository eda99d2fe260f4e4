"""Whole runs with each schedule of a pipeline: what was stated is what there was, and a resumed run repeats it."""

import sys
from itertools import product
from pathlib import Path

import pytest
import safetensors.torch
import torch

from paceline import engine
from paceline.conf.errors import ConfigError

SETTINGS = [
    "strategy=pipeline",
    "model=mlp",
    "model.hidden=[32,24,16,24,16]",
    "data=digits",
    "data.limit=96",
    "batch_size=32",
    "hardware.workers=2",
    "steps=4",
    "epochs=10",
    "tracking=none",
]
SAVING = ["checkpoint.every_steps=2"]
FABRICS = {"virtual": ["hardware=virtual"], "process": ["hardware.device=cpu", "hardware.threads=1"]}
FLUSHING = {
    "naive": [],
    "gpipe": [],
    "1f1b": ["strategy.micro_batches=6"],
    "interleaved": ["strategy.chunks=3"],
    "zb_h1": ["strategy.micro_batches=6"],
    "zb_v": ["strategy.micro_batches=6"],
}
STREAMING = {"pipedream": ["strategy.vertical_sync=true"], "pipedream_2bw": ["strategy.micro_batches=6"]}
SCHEDULES = FLUSHING | STREAMING
pytestmark = [pytest.mark.dist, pytest.mark.budget(6)]


def identical(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def finish(root: Path, *overrides: str, resume: str | None = None):
    given = [] if resume else SETTINGS
    result = engine.run([*given, *overrides], root=root, quiet=True, resume=resume)
    assert result is not None and result.summary["status"] == "completed"
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary


FAST = [
    ("virtual", "interleaved", "false"),
    ("virtual", "zb_h1", "false"),
]  # its own tests have the others' parts
RUNS = [
    pytest.param(*how, marks=[] if how in FAST else pytest.mark.slow)
    for how in product(FABRICS, SCHEDULES, ["false", "true"])
]


@pytest.mark.parametrize(("fabric", "schedule", "recompute"), RUNS)
def test_bytes_and_activations_of_each_schedule_are_those_of_the_plan(
    fabric: str, schedule: str, recompute: str, tmp_path: Path, fork_server: None
) -> None:
    how = [*FABRICS[fabric], f"strategy.schedule={schedule}", f"strategy.recompute={recompute}", *SCHEDULES[schedule]]
    _, summary = finish(tmp_path, *how)
    stated = summary["predicted"]
    assert summary["wire"]["bytes_per_step"] == stated["bytes_per_step"] > 0
    assert summary["memory"]["parameters"] == stated["memory"]["parameters"] > 0
    found = summary["memory"]["activations"]
    assert found == pytest.approx(stated["memory"]["activations"], rel=0.02 if recompute == "false" else 0.15)


def test_activations_of_a_plan_follow_what_is_in_flight() -> None:
    """Of 1f1b stage i of p keeps those of p - i micro-batches, and the others all there are."""

    def of(schedule: str, *more: str) -> list[int]:
        overrides = ["strategy.stages=3", "hardware.workers=3", "strategy.micro_batches=8", *more]
        plan = engine.prepare([*SETTINGS, *overrides, f"strategy.schedule={schedule}"]).plan()
        return [part.memory["activations"] for part in plan.parts]

    of_one = of("gpipe", "strategy.micro_batches=1", "batch_size=4")
    # what the first stage keeps of the inputs, and the last of the targets, are cut of one tensor: the batch
    batch = [28 * 64 * 4, 0, 28 * 8]
    for schedule, flying in {"gpipe": [8, 8, 8], "1f1b": [3, 2, 1], "zb_h1": [3, 3, 3]}.items():
        of_each = [one - whole // 7 for one, whole in zip(of_one, batch, strict=True)]
        expected = [n * one + whole * 8 // 7 for n, one, whole in zip(flying, of_each, batch, strict=True)]
        assert of(schedule) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    [pytest.param(name, marks=[] if name == "zb_h1" else pytest.mark.slow) for name in SCHEDULES],
)
def test_a_resumed_run_of_each_schedule_is_the_uninterrupted_one_bit_for_bit(
    schedule: str, tmp_path: Path, fork_server: None
) -> None:
    """Without a flush, too, where both drain at the same checkpoints; a virtual cluster makes none."""
    how = [*FABRICS["process"], f"strategy.schedule={schedule}", *SCHEDULES[schedule], "hardware.timeout=30"]
    straight, _ = finish(tmp_path, *how, *SAVING, "name=straight")
    half, _ = finish(tmp_path, *how, *SAVING, "name=half", "steps=2")
    resumed, _ = finish(tmp_path, "steps=4", resume="half")
    assert identical(straight, resumed) and not identical(straight, half)
    virtual, _ = finish(tmp_path, *how[2:-1], "hardware=virtual", "name=virtual")
    assert identical(straight, virtual) == (schedule in FLUSHING)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["strategy.schedule=interleaved", "strategy.micro_batches=5"],
            "micro_batches=5: .* nearest that fit are 4 and 6",
        ),
        (["strategy.schedule=1f1b", "strategy.chunks=2"], "chunks=2: .* Choose strategy.chunks=1, or .*interleaved"),
        (["strategy.schedule=interleaved", "strategy.chunks=9"], "9 chunks each: the model has .* layers to cut"),
        (["strategy.micro_batches=33"], "micro_batches=33: .* batch_size=32 .*. Choose strategy.micro_batches <= 32"),
        (
            ["strategy=hybrid", "strategy.tensor=1", "strategy.micro_batches=33", "strategy.cut=parameters"],
            "micro_batches=33: .* batch_size=32 .*. Choose strategy.micro_batches <= 32",
        ),
        (["model.hidden=[]"], "of which 1 has parameters to train. Choose strategy=data_parallel"),
        (
            ["strategy.schedule=interleaved", "model.hidden=[16,8]"],
            "of which 3 have parameters to train. Choose fewer strategy.chunks",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(overrides: list[str], says: str) -> None:
    with pytest.raises(Exception, match=says) as caught:
        engine.prepare([*SETTINGS, *overrides]).plan()
    assert getattr(caught.value, "exit_code", None) == 2
    assert not torch.distributed.is_initialized()


# -- without a flush


@pytest.mark.parametrize("schedule", STREAMING)
@pytest.mark.slow
def test_evaluation_drains_and_its_moments_are_part_of_the_result(schedule: str, tmp_path: Path) -> None:
    """Twelve steps, three an epoch: drained after each epoch, after every second, and at the end alone."""
    how = [*FABRICS["virtual"], f"strategy.schedule={schedule}", "steps=12"]
    found = [
        finish(tmp_path, *how, f"evaluate.every={every}", f"name=every-{every}-{i}")[0]
        for i, every in enumerate([1, 2, 9, 9])
    ]
    assert identical(found[2], found[3])
    assert not identical(found[0], found[1]) and not identical(found[1], found[2])


@pytest.mark.parametrize("schedule", STREAMING)
@pytest.mark.slow
def test_a_step_takes_in_steady_state_what_its_schedule_takes_when_simulated(schedule: str, tmp_path: Path) -> None:
    """And the drain is part of the last step: all passes are in the time of training."""
    how = [*FABRICS["virtual"], f"strategy.schedule={schedule}", "steps=60", "evaluate.every=99", "measure.after=10"]
    timetable = engine.prepare([*SETTINGS, *how]).timetable()
    assert timetable is not None
    _, summary = finish(tmp_path, *how)
    step = timetable.simulation.seconds / timetable.simulation.steps
    assert summary["per_worker"][1]["median"] == pytest.approx(step, rel=1e-6)  # the last stage's steps are alike
    busy = max(timetable.simulation.busy) / timetable.simulation.steps
    assert summary["seconds"] >= 60 * busy


def test_only_bsp_goes_with_a_schedule_that_updates_by_itself() -> None:
    with pytest.raises(
        Exception,
        match=r"strategy=pipeline: with strategy.schedule=pipedream updates .* sync=asp .*Choose .* or sync=bsp",
    ):
        engine.prepare([*SETTINGS, "strategy.schedule=pipedream", "sync=asp"]).plan()
    with pytest.raises(Exception, match=r"sync\.bucket_mb=3.*owns its update"):
        engine.prepare([*SETTINGS, "strategy.schedule=pipedream", "sync.bucket_mb=3"]).plan()


# -- a user's own schedule


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where modules are allowed, the current directory is put there."""
    monkeypatch.setattr(sys, "path", sys.path.copy())


OWN = ["strategy.micro_batches=2", "hardware=virtual"]


def csv_of(path: Path, *rows: str) -> str:
    path.write_text("".join(f"{row}\n" for row in rows))
    return f"strategy.schedule={path}"


def test_a_schedule_of_a_file_is_run_and_the_run_keeps_it(tmp_path: Path) -> None:
    """As torch writes it, with idle places; the file may go."""
    named = csv_of(tmp_path / "own.csv", "0F0,0F1,,0I0,0B1,0W0,0REDUCE_GRAD", ",1F0,1B0,1F1,1B1,1REDUCE_GRAD")
    prepared = engine.prepare([*SETTINGS, *OWN, named])
    (tmp_path / "own.csv").unlink()
    assert prepared.experiment.strategy.knobs["schedule"][1] == ",1F0,1B0,1F1,1B1,1REDUCE_GRAD"
    plan = prepared.plan()
    assert plan.layout.mesh.axes["stage"] == 2


def test_a_schedule_of_a_users_function_is_gradient_accumulation_bit_for_bit(tmp_path: Path) -> None:
    """V-shaped: the loss is on worker 0, and the last worker hands its output on to itself."""
    own = ["strategy.schedule=my_schedules.v_shaped", *OWN]
    result = engine.run([*SETTINGS, *own], root=tmp_path, quiet=True, allow_modules=["my_schedules"])
    assert result is not None
    found = safetensors.torch.load_file(result.path / "model.safetensors")
    expected, _ = finish(tmp_path, *OWN)
    assert identical(found, expected)
    assert result.summary["wire"]["bytes_per_step"] == result.summary["predicted"]["bytes_per_step"] > 0


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            ["0F0,0B0,0F1,0B1", "1F1,1B1,1F0,1B0"],
            "strategy.schedule: it deadlocks: .* worker 0 at 0B0 for 1B0; worker 1",
        ),
        (["0F0,0F1,0B0,0B1", "1F0,1B0,1F1"], "worker 0 waits forever at 0B1: it reads what 1B1 makes"),
        (["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,what"], "worker 1: 'what' is no action"),
        pytest.param(["0F0", "a" * 200_000], "is no CSV: field larger than field limit", id="long cell"),
        (["0F0,0F1,0B0,0B1"], "strategy.stages=2: strategy.schedule has 1 lines.* It needs 2 of them"),
        (["0F0,0B0", "1F0,1B0"], "strategy.micro_batches=2: strategy.schedule has 1. Choose strategy.micro_batches=1"),
        (["", ""], "strategy.schedule has 0"),
        ([], "strategy.stages=2: strategy.schedule has 0 lines.* It needs 2 of them"),
    ],
)
def test_a_schedule_of_the_users_that_cannot_go_well_is_refused(rows: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        engine.prepare([*SETTINGS, *OWN, csv_of(tmp_path / "own.csv", *rows)]).plan()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("1f1", "schedule=1f1: did you mean 1f1b"),
        ("missing.csv", "schedule=missing.csv: cannot be read: .*No such file"),
        ("my_schedules.v_shaped", "runs only if you allow it: --allow-module my_schedules"),
    ],
)
def test_a_schedule_that_there_is_not_is_refused(named: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        engine.prepare([*SETTINGS, f"strategy.schedule={named}"]).plan()


@pytest.mark.parametrize(("function", "says"), [("broken", "KeyError: 'nothing here'"), ("none", "AttributeError")])
def test_what_a_users_function_raises_is_told(function: str, says: str) -> None:
    named = f"strategy.schedule=my_schedules.{function}"
    with pytest.raises(ConfigError, match=rf"my_schedules.{function}: {function}\(2, 4, 1\) must return .*{says}"):
        engine.prepare([*SETTINGS, named], allow_modules=["my_schedules"]).plan()
