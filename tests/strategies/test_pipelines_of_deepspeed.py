"""strategy=deepspeed_pipeline: DeepSpeed's engine, against serial accumulation of gradients and strategy=pipeline."""

import pytest
import safetensors.torch
from oracles import FEATURES, Case, Plan, adam, deep64, distance, identical, mlp, serial, train, workers_of
from torch import nn

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.strategies.deepspeed_pipeline import DeepSpeedPipeline
from paceline.strategies.external.deepspeed_stages import most_held
from paceline.strategies.sync.bsp import BSP
from paceline.testing.fabrics import FABRICS

SIZES = [[8], [8], [6], [5], [8]]  # 6 makes 3 micro-batches of 2, and 5 one
ROUNDING = 1e-6  # of sums of float32 in another order, over a few steps
EVERYWHERE = ["tracking=none", "hardware.threads=1", "optimizer=adam"]
GPT = ["model=gpt", "data=text", "model.n_layer=3", "model.width=32", "batch_size=6", "strategy.micro_batches=3"]
MLP = ["model.hidden=[17,12,11]"]

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]
slow = pytest.mark.slow


def deep() -> nn.Module:
    return deep64().float()


class Tied(nn.Module):
    """The first and the last layer have the same weight, each with a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, FEATURES) for _ in range(4)])
        self.layers[3].weight = self.layers[0].weight

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def pieces(size: int) -> int:
    return max(m for m in (1, 2, 3, 4) if size % m == 0)


def trained(strategy, case):
    plan = Plan(strategy, BSP(), case)
    return FABRICS["process"](workers_of(plan), train, plan, patience=120.0, timeout=60.0)


@slow
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_one_replica_is_serial_accumulation_bit_for_bit_and_sends_what_is_stated(stages):
    case = Case(SIZES, model=deep, optimizer=adam)
    results = trained(DeepSpeedPipeline(stages), case)
    assert identical(results[-1]["whole"], serial(case, pieces))
    assert results[0]["losses"] == [None] * len(SIZES)
    assert all(loss > 0 for loss in results[-1]["losses"])
    sent = sum(n for [n] in SIZES) * FEATURES * 4 * (stages - 1)  # float32, forward, and as much back
    assert sum(each["ledger"]["send"] for each in results) == 2 * sent
    assert sum(each["ledger"].get("broadcast", 0) for each in results) == len(SIZES) * 8 * (stages - 1)  # two losses
    assert all(not each["ledger"].get("all_reduce") for each in results)


@slow
def test_two_replicas_of_uneven_and_empty_batches_are_serial_training():
    case = Case([[8, 8], [6, 2], [1, 0], [0, 3], [4, 4]], model=mlp, optimizer=adam)
    results = trained(DeepSpeedPipeline(), case)
    assert distance(results[1]["whole"], serial(case)) < ROUNDING
    assert results[1]["losses"][3] is None  # nothing was there to learn


@slow
@pytest.mark.parametrize("sizes", [SIZES, [[8, 8], [6, 2], [4, 4]]], ids=["one replica", "two replicas"])
def test_a_weight_that_two_of_three_stages_share_trains_as_one(sizes):
    case = Case(sizes, model=Tied, optimizer=adam)
    results = trained(DeepSpeedPipeline(3), case)
    assert distance(results[2]["whole"], serial(case, pieces)) < ROUNDING
    first, last = (results[stage]["weights"]["layers.0.weight"] for stage in (0, 2))
    assert first.equal(last)


def test_stages_that_share_several_weights_with_different_others_are_refused():
    model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(6)])
    model[5].weight, model[3].weight = model[0].weight, model[1].weight  # stages 0 and 2, 0 and 1
    with pytest.raises(ConfigError, match=r"stages share one weight and others another .*strategy=pipeline"):
        DeepSpeedPipeline(3, cut=[2, 4]).split(model)


@pytest.mark.parametrize(
    ("stage", "stages", "micro_batches", "by_hand"),
    [
        (0, 2, 4, 20 + max(2 * 10 + 2 * 20, 2 * 10 + 500)),  # two places of inputs stay
        (0, 2, 1, 20 + 10 + 500),  # of one micro-batch one
        (1, 3, 4, 30 + 500),  # nothing but room for messages stays
        (2, 3, 4, 10 + 2 * 20 + 500),  # two outputs stay
    ],
)
def test_what_deepspeed_keeps_is_stated_with_joined_gradients(stage, stages, micro_batches, by_hand):
    assert most_held(stage, stages, micro_batches, entering=10, leaving=20, gradients=500) == by_hand


def test_what_deepspeed_keeps_is_most_amid_a_step_where_gradients_are_small():
    assert most_held(1, 4, 8, entering=10, leaving=20, gradients=5) == 30 + 3 * 10 + 3 * 20  # three are under way
    assert most_held(3, 4, 8, entering=10, leaving=20, gradients=5) == 10 + 10 + 10 + 2 * 20  # with an input's gradient


@slow
@pytest.mark.parametrize(
    "how",
    [
        [*MLP, "hardware.workers=2"],
        [*MLP, "hardware.workers=4"],
        [*MLP, "hardware.workers=3", "strategy.stages=3", "strategy.micro_batches=8"],
        [*MLP, "hardware.workers=2", "strategy.micro_batches=1"],
        ["model=cnn", "hardware.workers=2"],
        [*GPT, "hardware.workers=2"],
        [*GPT, "hardware.workers=4"],
        [*GPT, "hardware.workers=2", "model.tied=true"],
        [*GPT, "hardware.workers=4", "model.tied=true"],
        [*GPT, "hardware.workers=3", "strategy.stages=3", "model.tied=true"],
        [*GPT, "hardware.workers=2", "model.dropout=0.1"],
    ],
    ids=" ".join,
)
def test_memory_and_bytes_are_the_stated_ones_and_weights_those_of_our_pipeline(fork_server, tmp_path, how):
    def run(strategy):
        overrides = [*EVERYWHERE, f"strategy={strategy}", "strategy.schedule=1f1b", "data.limit=256", "steps=4", *how]
        return engine.run(overrides, root=tmp_path, quiet=True)

    theirs, ours = run("deepspeed_pipeline"), run("pipeline")
    stated, measured = theirs.summary["predicted"], theirs.summary
    workers, stages = measured["workers"], measured["stages"]
    assert measured["wire"]["bytes_per_step"] == pytest.approx(stated["bytes_per_step"], abs=1e-6)
    losses = 8 * (stages - 1) / stages + (4 / stages if workers > stages else 0)
    assert measured["wire"]["bytes_per_step"] == pytest.approx(
        ours.summary["wire"]["bytes_per_step"] + losses, abs=1e-6
    )
    for kind in ("parameters", "gradients", "optimizer", "buffers", "activations"):
        assert measured["memory"][kind] == stated["memory"][kind] > 0, kind
    weights = [safetensors.torch.load_file(each.path / "model.safetensors") for each in (theirs, ours)]
    assert identical(*weights)


@slow
@pytest.mark.parametrize(
    "how",
    [[*MLP, "hardware.workers=4"], [*GPT, "model.tied=true", "model.dropout=0.1", "hardware.workers=2"]],
    ids=" ".join,
)
def test_a_resumed_run_equals_the_uninterrupted_one_with_an_odd_last_batch(fork_server, tmp_path, how):
    def run(*overrides, **more):
        result = engine.run(list(overrides), root=tmp_path, quiet=True, **more)
        return safetensors.torch.load_file(result.path / "model.safetensors")

    how = [*EVERYWHERE, "strategy=deepspeed_pipeline", *how, "data.limit=201", "epochs=20", "checkpoint.every_steps=5"]
    straight = run(*how, "steps=12")
    halfway = run(*how, "steps=5", name="first")
    assert not identical(halfway, straight)
    assert identical(run("steps=12", resume="first"), straight)


@slow
def test_a_checkpoint_is_that_of_our_pipeline_too(fork_server, tmp_path):
    """The same names, cut and optimizer state: weights that one wrote, the other begins with."""
    how = [*EVERYWHERE, *MLP, "hardware.workers=2", "strategy.schedule=1f1b", "data.limit=256"]
    first = engine.run([*how, "strategy=deepspeed_pipeline", "steps=3"], root=tmp_path, quiet=True)
    begun = [f"weights={first.path / 'model.safetensors'}", "steps=2"]
    both = [
        engine.run([*how, f"strategy={strategy}", *begun], root=tmp_path, quiet=True)
        for strategy in ("deepspeed_pipeline", "pipeline")
    ]
    assert identical(*(safetensors.torch.load_file(each.path / "model.safetensors") for each in both))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["strategy.micro_batches=5"], r"micro_batches=5: .*batch_size=32 is no multiple of it. Choose .*=4, or"),
        (["batch_size=2"], r"micro_batches=4: .*batch_size=2 .*Choose strategy.micro_batches=2"),
        (["strategy.schedule=gpipe"], r"strategy.schedule='gpipe': .*1f1b"),
        (["strategy.stages=9", "hardware.workers=9"], r"strategy.stages=9: the model has 6 layers"),
        (["hardware.workers=3"], r"hardware.workers=3: strategy=deepspeed_pipeline lays one replica over 2 workers"),
        (["sync=local_sgd"], r"strategy=deepspeed_pipeline: owns its update, and sync=local_sgd is"),
        (["sync.shard=optimizer"], r"sync.shard=optimizer: strategy=deepspeed_pipeline owns its update"),
        (["compress=bf16"], r"compress=bf16"),
        (["hardware=virtual"], r"hardware=virtual: strategy=deepspeed_pipeline talks to torch's own process groups"),
        (["model=linear"], r"has no parameters to train|layers to cut between"),
    ],
)
def test_what_deepspeed_would_not_do_is_refused_with_what_would_be_right(overrides, said):
    with pytest.raises(ConfigError, match=said) as caught:
        engine.prepare(["strategy=deepspeed_pipeline", "hardware.workers=2", *overrides]).plan()
    assert caught.value.exit_code == 2
