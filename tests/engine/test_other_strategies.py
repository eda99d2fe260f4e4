"""Runs that go on under another strategy: they end with the weights of the run that never changed."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from short_runs import Train

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine import Result
from paceline.engine.base.checkpoint import open_parts, read_manifest, steps_of
from paceline.tracking.checksums import json_sealed

pytestmark = pytest.mark.dist

SAMPLES = 48  # of a step
BASE = (
    "tracking=none",
    "data.limit=400",
    "epochs=1000",
    "evaluate.every=1000",
    "checkpoint.every_steps=4",
    "checkpoint.keep=9",
    "hardware.device=cpu",
    "hardware.threads=1",
)
MLP = ("model.hidden=[16,16]", "optimizer=adam")
PARTS = {"pipeline": 2, "tensor": 2, "domain": 2, "torch_tensor": 2, "torch_pipelining": 2, "deepspeed_pipeline": 2}
CLOSE = 1e-6  # float32: the same sums in another order


@pytest.fixture
def train(root: Path, fork_server: None) -> Train:
    def train(*overrides: str, name: str | None = None, resume: str | None = None) -> Result:
        result = engine.run(overrides, allow_modules=["own_models"], name=name, resume=resume, root=root, quiet=True)
        assert result is not None
        return result

    return train


def chosen(strategy: str) -> list[str]:
    """Returns the overrides of a strategy and its knobs, `name key=value`, on 2 workers (4 of a hybrid, 1 alone)."""
    name, *knobs = strategy.split()
    workers = {"hybrid": 4, "single": 1}.get(name, 2)
    return [f"strategy={name}", *(f"strategy.{knob}" for knob in knobs), f"hardware.workers={workers}"]


def batch(strategy: str) -> str:
    name = strategy.split()[0]
    return f"batch_size={SAMPLES if name in ('hybrid', 'single') else SAMPLES * PARTS.get(name, 1) // 2}"


def change(train: Train, strategies: list[str], *overrides: str) -> Path:
    """Trains 4 steps under each; returns the run."""
    run = train(*BASE, *overrides, *chosen(strategies[0]), batch(strategies[0]), "steps=4", name="moving")
    for i, strategy in enumerate(strategies[1:], start=2):
        run = train(*chosen(strategy), f"steps={4 * i}", resume="moving")
    return run.path


def distance(train: Train, strategies: list[str], *overrides: str) -> float:
    moving = change(train, strategies, *overrides)
    steps = f"steps={4 * len(strategies)}"
    whole = train(*BASE, *overrides, *chosen(strategies[0]), batch(strategies[0]), steps, name="whole")
    mine, theirs = (load_file(run / "model.safetensors") for run in (moving, whole.path))
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


@pytest.mark.slow
def test_a_run_goes_on_in_a_pipeline_and_comes_back(train: Train, root: Path) -> None:
    there_and_back = ["data_parallel", "pipeline stages=2", "data_parallel"]
    assert distance(train, there_and_back, *MLP, "average=ema") < CLOSE
    found = [read_manifest(each) for each in steps_of(root / "moving" / "checkpoints")]
    assert [each.strategy and each.strategy["name"] for each in found] == [name.split()[0] for name in there_and_back]
    assert [each.batch_size for each in found] == [24, 48, 24]


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategies",
    [
        ["data_parallel", "single", "torch_ddp", "torch_zero_optimizer", "zero stage=2", "offload"],
        ["hybrid", "torch_tensor", "torch_pipelining", "hybrid", "tensor"],
        ["data_parallel", "deepspeed_pipeline", "zero stage=2", "hybrid"],
        ["offload", "zero stage=3", "torch_zero_optimizer", "zero stage=1", "torch_fsdp", "zero stage=3"],
        ["torch_fsdp", "tensor", "zero stage=1", "pipeline", "torch_ddp", "torch_tensor", "torch_fsdp"],
        ["pipeline", "pipeline schedule=interleaved", "single", "pipeline schedule=zb_h1"],
        ["torch_pipelining", "data_parallel", "zero stage=0", "pipeline", "tensor"],
    ],
    ids=lambda names: "-".join(name.replace(" ", "_") for name in names),
)
def test_each_strategy_goes_on_with_what_another_saved(train: Train, strategies: list[str]) -> None:
    assert distance(train, strategies, *MLP[1:], "model.hidden=[16,16,16]") < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategies", "overrides"),
    [
        (["data_parallel", "domain", "data_parallel"], ["model=cnn"]),
        (["data_parallel", "pipeline", "data_parallel"], [*MLP, "optimizer=muon"]),
        (["data_parallel", "pipeline", "data_parallel"], [*MLP, "optimizer=lars"]),
        (["data_parallel", "pipeline"], [*MLP, "optimizer=sgd_free_biases", "optimizer.momentum=0.9"]),
        (
            ["data_parallel", "pipeline", "tensor", "hybrid"],
            ["model=gpt", "model.tied=true", "model.n_layer=2", "model.width=32", "data=text", "data.limit=96"],
        ),
    ],
)
def test_optimizers_ties_and_buffers_are_carried(train: Train, strategies: list[str], overrides: list[str]) -> None:
    assert distance(train, strategies, *overrides) < CLOSE


@pytest.mark.slow
def test_in_float64_nothing_but_the_last_digits_differ(train: Train) -> None:
    strategies = ["data_parallel", "pipeline", "torch_fsdp", "tensor", "hybrid", "data_parallel"]
    assert distance(train, strategies, "model={_target_: own_models.InFloat64}", "optimizer=adam") < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategies", "kind"),
    [
        (["data_parallel", "pipeline", "data_parallel"], "group"),
        (["data_parallel", "pipeline", "data_parallel"], "list"),
        (["zero stage=1", "torch_fsdp", "zero stage=3"], "group"),
    ],
)
def test_what_an_optimizer_keeps_in_groups_and_in_lists_is_carried(
    train: Train, strategies: list[str], kind: str
) -> None:
    optimizer = f"optimizer={{_target_: own_models.Falling, kind: {kind}}}"
    assert distance(train, strategies, MLP[0], optimizer) < CLOSE


@pytest.mark.slow
def test_state_that_an_optimizer_makes_in_its_constructor_is_carried(train: Train) -> None:
    optimizer = "optimizer={_target_: torch.optim.Adagrad, lr: 0.05}"
    assert distance(train, ["zero stage=1", "zero stage=3", "torch_fsdp", "zero stage=1"], MLP[0], optimizer) < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategies", "overrides"),
    [
        (["torch_zero_optimizer", "data_parallel", "pipeline", "pipeline schedule=1f1b", "torch_fsdp"], []),
        (["data_parallel", "data_parallel"], ["sync.shard=optimizer"]),
    ],
)
def test_what_an_optimizer_saves_under_keys_of_its_own_is_carried(
    train: Train, strategies: list[str], overrides: list[str]
) -> None:
    optimizer = "optimizer={_target_: own_models.Saving}"
    assert distance(train, strategies, MLP[0], optimizer, *overrides) < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["name", "first"])
def test_what_an_optimizer_keeps_for_all_parameters_is_refused(train: Train, kind: str) -> None:
    optimizer = f"optimizer={{_target_: own_models.Falling, kind: {kind}}}"
    with pytest.raises(ConfigError, match="the optimizer keeps state that is of no one parameter"):
        change(train, ["data_parallel", "pipeline"], MLP[0], optimizer)


@pytest.mark.slow
def test_stages_that_are_cut_elsewhere_for_another_batch_are_carried(train: Train, root: Path) -> None:
    cut = ("model={_target_: own_models.Lopsided}", "optimizer=adam", "strategy=pipeline", "strategy.cut=memory")
    begun = (*BASE, *cut, "strategy.micro_batches=1", "hardware.workers=8", "batch_size=12")
    train(*begun, "steps=4", name="moving")
    moved = train("hardware.workers=2", "steps=8", resume="moving")
    whole = train(*begun, "steps=8", name="whole")
    first, second = (open_parts(each, read_manifest(each)) for each in steps_of(root / "moving" / "checkpoints"))
    assert [each["parameters"].keys() for each in first] != [each["parameters"].keys() for each in second]
    mine, theirs = (load_file(run.path / "model.safetensors") for run in (moved, whole))
    assert max(float((mine[name] - theirs[name]).abs().max()) for name in mine) < CLOSE


@pytest.mark.slow
def test_a_compressor_goes_on_over_other_buckets(train: Train) -> None:
    change(train, ["data_parallel"], *MLP, "compress=fp16")
    moved = train("strategy=pipeline", "hardware.workers=4", "steps=8", resume="moving")
    whole = train(*BASE, *MLP, "compress=fp16", *chosen("data_parallel"), "batch_size=24", "steps=8", name="whole")
    mine, theirs = (load_file(run.path / "model.safetensors") for run in (moved, whole))
    assert max(float((mine[name] - theirs[name]).abs().max()) for name in mine) < 1e-4


@pytest.mark.slow
def test_a_run_keeps_the_workers_of_a_strategy_that_takes_more_of_them_for_as_many_samples(train: Train) -> None:
    change(train, ["data_parallel", "hybrid stages=1"], *MLP)
    assert train("steps=12", resume="moving").summary["workers"] == 4


@pytest.mark.slow
def test_the_loss_scale_is_carried(train: Train) -> None:
    assert distance(train, ["data_parallel", "pipeline"], *MLP, "precision=fp16") < 1e-4


@pytest.mark.slow
def test_a_delayed_update_is_made_before_the_run_goes_on_without(train: Train) -> None:
    change(train, ["offload delayed_update=true", "data_parallel", "offload delayed_update=true"], *MLP)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["sync=local_sgd"], "sync=local_sgd: each replica has weights of its own"),
        (["sync=asp"], "sync.servers is not kept by the names of parameters"),
        (["compress=topk"], "sync=bsp: each replica has state of its own with compress=topk"),
    ],
)
def test_what_no_other_layout_can_take_is_refused(train: Train, overrides: list[str], said: str) -> None:
    train(*BASE, *MLP, *overrides, *chosen("data_parallel"), "steps=4", name="mine")
    with pytest.raises(ConfigError) as caught:
        train(*chosen("pipeline"), "steps=8", resume="mine")
    assert said in str(caught.value) and str(caught.value).endswith("Choose strategy=data_parallel.")


@pytest.mark.slow
def test_a_refusal_names_the_knob_that_was_changed(train: Train) -> None:
    train(*BASE, *MLP, "sync=local_sgd", *chosen("pipeline schedule=1f1b"), batch("pipeline"), "steps=4", name="mine")
    with pytest.raises(ConfigError, match=r"^strategy.schedule=gpipe: the run .* Choose strategy.schedule=1f1b\.$"):
        train("strategy.schedule=gpipe", "steps=8", resume="mine")


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_version_keeps_its_strategy(train: Train) -> None:
    path = train(*BASE, *MLP, *chosen("data_parallel"), "steps=4", name="mine").path
    [checkpoint] = steps_of(path / "checkpoints")
    manifest = dict(read_manifest(checkpoint).__dict__)
    del manifest["strategy"]
    (checkpoint / "manifest.json").write_text(json_sealed(manifest))
    with pytest.raises(ConfigError, match="is of an earlier version, which saved what no other strategy can read"):
        train(*chosen("pipeline"), "steps=8", resume="mine")
    assert train("steps=8", resume="mine").summary["steps"] == 8
