"""strategy=torch_pipelining: torch's own schedules, against serial accumulation of gradients and strategy=pipeline."""

from functools import partial

import pytest
import safetensors.torch
from oracles import Case, Plan, adam, deep64, identical, serial, shifted_loss, shifting, train

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.torch_pipelining import TorchPipelining
from paceline.testing.fabrics import FABRICS

SIZES = [[8], [8], [6], [5], [8]]  # 6 makes 3 micro-batches of 2, and 5 one
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb_h1"]
EVERYWHERE = ["tracking=none", "hardware.threads=1", "strategy=torch_pipelining", "hardware.workers=2"]

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]
slow = pytest.mark.slow
fast_is_one = pytest.mark.parametrize("schedule", ["gpipe", *(pytest.param(s, marks=slow) for s in SCHEDULES[1:])])


def pieces(size: int) -> int:
    return max(m for m in (1, 2, 3, 4) if size % m == 0)


@fast_is_one
def test_each_schedule_is_serial_accumulation_bit_for_bit_and_sends_what_is_stated(schedule):
    case = Case(SIZES, model=deep64, optimizer=adam)
    strategy = TorchPipelining(schedule=schedule)
    results = FABRICS["process"](2, train, Plan(strategy, BSP(), case))
    assert identical(results[strategy.loss_part]["whole"], serial(case, pieces))
    assert results[0]["losses"] == [None] * len(SIZES)
    cuts = 3 if schedule == "interleaved" else 1  # between workers
    sent = sum(n for [n] in SIZES) * 6 * 8 * cuts  # float64 of 6 features, forward, and as much back
    assert sum(each["ledger"]["send"] for each in results) == 2 * sent


@pytest.mark.slow
@fast_is_one
def test_a_model_and_a_loss_may_change_a_micro_batch_in_place(schedule):
    def weights(in_place):
        case = Case([[8], [8]], model=partial(shifting, in_place), loss=partial(shifted_loss, in_place=in_place))
        strategy = TorchPipelining(schedule=schedule)
        return FABRICS["process"](2, train, Plan(strategy, BSP(), case))[strategy.loss_part]["whole"]

    assert identical(weights(True), weights(False))


@pytest.mark.parametrize("strategy", ["torch_pipelining", "deepspeed_pipeline", "pipeline", "hybrid"])
def test_a_stage_that_begins_with_a_change_in_place_is_refused_by_its_reason(strategy):
    words = ["model={_target_:oracles.InPlaceInside}", f"strategy={strategy}", "strategy.cut=[2]", "hardware.workers=2"]
    more = ["strategy.tensor=1"] if strategy == "hybrid" else []
    with pytest.raises(ConfigError, match=rf"^strategy={strategy}: a stage begins .*in place\. Choose another strat"):
        engine.prepare([*words, *more], allow_modules=["oracles"]).plan()


def test_a_batch_is_cut_into_micro_batches_of_one_size():
    strategy = TorchPipelining(micro_batches=4)
    assert [strategy.micro_sizes(n) for n in (8, 6, 5, 3, 1)] == [[2] * 4, [2] * 3, [5], [1] * 3, [1]]


@slow
@pytest.mark.parametrize("model", [["model.hidden=[17,12,11]"], ["model=cnn", "strategy.cut=parameters"]], ids=" ".join)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_memory_and_bytes_are_the_stated_ones_and_weights_those_of_our_pipeline(fork_server, tmp_path, schedule, model):
    def run(strategy):
        how = [
            *EVERYWHERE,
            *model,
            f"strategy={strategy}",
            f"strategy.schedule={schedule}",
            "data.limit=256",
            "steps=4",
        ]
        return engine.run(how, root=tmp_path, quiet=True)

    torchs, ours = run("torch_pipelining"), run("pipeline")
    stated, measured = torchs.summary["predicted"], torchs.summary
    assert measured["wire"]["bytes_per_step"] == stated["bytes_per_step"] == ours.summary["wire"]["bytes_per_step"]
    for kind in ("parameters", "gradients", "buffers", "activations"):
        assert measured["memory"][kind] == stated["memory"][kind] > 0, kind
    weights = [safetensors.torch.load_file(each.path / "model.safetensors") for each in (torchs, ours)]
    assert identical(*weights)


@slow
def test_a_resumed_run_equals_the_uninterrupted_one_with_an_odd_last_batch(fork_server, tmp_path):
    def run(*overrides, **how):
        result = engine.run(list(overrides), root=tmp_path, quiet=True, **how)
        return safetensors.torch.load_file(result.path / "model.safetensors")

    how = [*EVERYWHERE, "strategy.schedule=1f1b", "model.hidden=[17,12,11]", "data.limit=201", "epochs=4"]
    straight = run(*how, "steps=12", "checkpoint.every_steps=5")
    run(*how, "steps=5", "checkpoint.every_steps=5", name="first")
    assert identical(run("steps=12", resume="first"), straight)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["strategy.micro_batches=5"], r"micro_batches=5: .*batch_size=32 is no multiple of it. Choose .*=4, or"),
        (["batch_size=2"], r"micro_batches=4: .*batch_size=2 .*Choose strategy.micro_batches=2"),
        (["strategy.chunks=2"], r"strategy.chunks=2: strategy.schedule=gpipe has one .*schedule=interleaved"),
        (["hardware.workers=4"], r"hardware.workers=4: strategy=torch_pipelining takes at most 2"),
        (["sync=local_sgd"], r"strategy=torch_pipelining: owns its update, and sync=local_sgd is"),
        (
            ["strategy.schedule=1f1b", "strategy.stages=5"],
            r"micro_batches=4: .*Choose strategy.micro_batches=5, or .*gpipe",
        ),
        (["hardware=virtual"], r"hardware=virtual: strategy=torch_pipelining talks to torch's own process groups"),
        (
            ["model=gpt", "model.tied=true", "data=text"],
            r"two stages would share a parameter \(tied weights\).* or strategy=pipeline, which sums",
        ),
        (
            ["strategy.schedule=zb_h1", "model=gpt", "data=text", "model.recompute=true"],
            r"zb_h1: torch .*\(model.recompute=true\).* Choose strategy.schedule=1f1b, or strategy=pipeline, or model",
        ),
        (["strategy.schedule=naive"], r"strategy.schedule='naive': .*gpipe.*1f1b.*interleaved.*zb_h1"),
    ],
)
def test_what_torch_would_not_do_is_refused_with_what_would_be_right(overrides, said):
    with pytest.raises(ConfigError, match=said) as caught:
        engine.prepare(["strategy=torch_pipelining", "hardware.workers=2", *overrides]).plan()
    assert caught.value.exit_code == 2
