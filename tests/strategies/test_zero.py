"""strategy=zero: DeepSpeed itself, at each stage and offload, against plain data parallel."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from needs import needs_compiler
from torch import Tensor, nn

from paceline import engine
from paceline.compat.deepspeed import loss_scale, set_loss_scale
from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.strategies import Strategy
from paceline.strategies.deepspeed_pipeline import DeepSpeedPipeline
from paceline.strategies.torch_fsdp import TorchFSDP
from paceline.strategies.zero import Zero, _Forward

EVERYWHERE = ["tracking=none", "model.hidden=[16,12]", "optimizer=adam", "hardware.threads=1", "hardware.workers=2"]
FIFTY = ["steps=50", "epochs=10", "batch_size=13", "evaluate.every=100", "checkpoint.every=0"]
ROUNDING = 1e-6

slow = pytest.mark.slow
STAGES = [
    pytest.param(["strategy.stage=0"], marks=slow),
    pytest.param(["strategy.stage=1"], marks=slow),
    ["strategy.stage=2"],
    pytest.param(["strategy.stage=3"], marks=slow),
    pytest.param(["strategy.stage=2", "strategy.micro_batches=3"], marks=slow),
    pytest.param(["strategy.stage=3", "strategy.micro_batches=3", "strategy.recompute=true"], marks=slow),
    pytest.param(["strategy.stage=1", "strategy.offload=optimizer"], marks=[slow, needs_compiler]),
    pytest.param(["strategy.stage=2", "strategy.offload=optimizer"], marks=[slow, needs_compiler]),
    pytest.param(["strategy.stage=3", "strategy.offload=optimizer"], marks=[slow, needs_compiler]),
    pytest.param(["strategy.stage=3", "strategy.offload=all"], marks=[slow, needs_compiler]),
]
pytestmark = pytest.mark.timeout(300)


def trained(root, *overrides, **how):
    result = engine.run([*EVERYWHERE, *overrides], root=root, quiet=True, **how)
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary


def distance(a, b):
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.fixture(scope="module")
def plain(fork_server, tmp_path_factory):
    """Data parallel training, by its overrides; each once."""
    kept = {}

    def train(*overrides):
        if overrides not in kept:
            kept[overrides] = trained(tmp_path_factory.mktemp("plain"), "strategy=data_parallel", *overrides)
        return kept[overrides]

    return train


class Turned(nn.Module):
    """[n, 64] -> [n, 10]. It shows a shape that ZeRO-3 takes away, and it has a parameter of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 10)
        self.order = nn.Parameter(torch.arange(10).flip(0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x.flatten(1))[:, self.order]

    def extra_repr(self) -> str:
        return f"columns={self.first.weight.shape[1]}"


@pytest.mark.slow
def test_stage_3_leaves_whole_numbers_as_they_are_and_needs_no_shapes_of_layers(fork_server, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    few = ["tracking=none", "steps=2", "batch_size=16", "hardware.threads=1", f"model={{_target_:{__name__}.Turned}}"]

    def weights(*how: str) -> dict[str, Tensor]:
        result = engine.run([*few, *how], root=tmp_path / how[0], quiet=True, allow_modules=[__name__])
        return safetensors.torch.load_file(result.path / "model.safetensors")

    cut = weights("strategy=zero", "strategy.stage=3", "hardware.workers=1")
    assert distance(cut, weights("strategy=single", "hardware.workers=1")) < ROUNDING
    assert cut["order"].dtype == torch.int64


@pytest.mark.parametrize("how", STAGES)
@pytest.mark.slow
def test_fifty_steps_equal_plain_data_parallel(plain, tmp_path, how):
    weights, summary = trained(tmp_path, "strategy=zero", *how, *FIFTY)
    reference, its = plain(*FIFTY)
    assert distance(weights, reference) < ROUNDING
    assert summary["accuracy"] == pytest.approx(its["accuracy"], abs=0.006)


@slow
def test_bf16_stays_near_fp32(plain, tmp_path):
    """bf16 has 8 bits of mantissa: after 50 steps a loss within 2 %, and weights within 50 times the rate."""
    weights, summary = trained(tmp_path, "strategy=zero", "precision=bf16", *FIFTY)
    reference, its = plain(*FIFTY)
    assert summary["loss"] == pytest.approx(its["loss"], rel=0.02)
    assert distance(weights, reference) < 0.05
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


@slow
def test_gradients_are_not_clipped_unless_asked(plain, tmp_path):
    """DeepSpeed's own default is a norm of 1; these begin at 3."""
    steep = ["model.hidden=[]", "optimizer=sgd", "optimizer.lr=0.1", "steps=5", "batch_size=13"]
    weights, _ = trained(tmp_path, "strategy=zero", *steep)
    assert distance(weights, plain(*steep)[0]) < ROUNDING


@slow
def test_uneven_and_empty_batches_weigh_by_their_samples(plain, tmp_path):
    """Of 1,437 samples the last step of an epoch gives 237 to one replica and none to the other."""
    uneven = ["batch_size=600", "epochs=2", "checkpoint.every=0"]
    weights, _ = trained(tmp_path, "strategy=zero", "strategy.stage=3", "strategy.micro_batches=2", *uneven)
    assert distance(weights, plain(*uneven)[0]) < ROUNDING


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(["strategy.stage=3"], marks=slow),
        pytest.param(["strategy.stage=1", "precision=bf16"], marks=slow),
        pytest.param(["strategy.stage=3", "precision=bf16"], marks=slow),
        pytest.param(["strategy.stage=0"], marks=slow),
        pytest.param(["strategy.stage=0", "optimizer={_target_:torch.optim.Adafactor}"], marks=slow),
        pytest.param(["strategy.stage=0", "precision=bf16"], marks=slow),
    ],
)
def test_resumed_is_uninterrupted_bit_for_bit(fork_server, tmp_path, how):
    steps = ["strategy=zero", *how, "hardware.workers=3", "batch_size=100"]
    whole, _ = trained(tmp_path, *steps, "epochs=3", name="whole")
    trained(tmp_path, *steps, "epochs=2", name="cut")
    result = engine.run(["epochs=3"], root=tmp_path, quiet=True, resume="cut")
    assert result.summary["resumed_at"] == 10
    assert distance(safetensors.torch.load_file(result.path / "model.safetensors"), whole) == 0


@slow
@needs_compiler
def test_resumed_with_offload_is_uninterrupted_within_rounding(fork_server, tmp_path):
    """DeepSpeed's CPU Adam keeps powers of beta as running products, which a resumed run computes at once."""
    steps = ["strategy=zero", "strategy.stage=3", "strategy.offload=all", "hardware.workers=3", "batch_size=100"]
    whole, _ = trained(tmp_path, *steps, "epochs=3", name="whole")
    trained(tmp_path, *steps, "epochs=2", name="cut")
    result = engine.run(["epochs=3"], root=tmp_path, quiet=True, resume="cut")
    assert distance(safetensors.torch.load_file(result.path / "model.safetensors"), whole) < 1e-6


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(["strategy.stage=0", "clip=norm", "clip.max=0.5"], marks=slow),
        pytest.param(["strategy.stage=2", "precision=bf16", "strategy.micro_batches=2"], marks=slow),
        pytest.param(["strategy.stage=1", "clip=norm", "clip.max=0.5", "strategy.micro_batches=2"], marks=slow),
        pytest.param(["strategy.stage=0", "precision=bf16", "clip=norm", "clip.max=0.5"], marks=slow),
        pytest.param(["strategy.stage=2", "hardware.workers=3"], marks=slow),
        pytest.param(["strategy.stage=1", "strategy.offload=optimizer"], marks=[slow, needs_compiler]),
    ],
)
def test_bytes_on_the_wire_and_memory_are_the_stated_ones(fork_server, tmp_path, how):
    few = ["steps=6", "data.limit=96", "batch_size=8", "checkpoint.every=0"]
    _, summary = trained(tmp_path, "strategy=zero", *how, *few)
    assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"], abs=1e-6)
    assert summary["wire"]["bytes_per_step"] > 0
    stated, measured = summary["predicted"]["memory"], summary["memory"]
    for kind in stated:
        assert measured[kind] == pytest.approx(stated[kind], rel=0.15 if kind == "activations" else 0.05), kind


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(["strategy.stage=3", "strategy.micro_batches=3", "hardware.workers=3"], marks=slow),
        pytest.param(["strategy.stage=3", "strategy.micro_batches=2", "precision=bf16"], marks=slow),
        pytest.param(["strategy.stage=2", "precision=bf16", "strategy.recompute=true"], marks=slow),
        pytest.param(["strategy.stage=2", "precision=bf16", "model.vocabulary=2048"], marks=slow),
        pytest.param(["strategy.stage=3", "precision=bf16", "strategy.offload=all"], marks=[slow, needs_compiler]),
    ],
)
def test_a_gpts_memory_is_the_stated_one(fork_server, tmp_path, how):
    gpt = ["model=gpt", "data=text", "model.n_layer=2", "model.width=32", "batch_size=6", "steps=3", "tracking=none"]
    two = ["optimizer=adam", "hardware.threads=1", "hardware.workers=2", "checkpoint.every=0"]
    result = engine.run(["strategy=zero", *gpt, *two, *how], root=tmp_path, quiet=True)
    stated, measured = result.summary["predicted"]["memory"], result.summary["memory"]
    for kind in stated:
        assert measured[kind] == pytest.approx(stated[kind], rel=0.15 if kind == "activations" else 0.05), kind


def predicted(*overrides, workers=4):
    return prepare([*EVERYWHERE, "strategy=zero", f"hardware.workers={workers}", *overrides]).plan().peak_memory()


@pytest.mark.parametrize("width, precision", [(4, "fp32"), (2, "bf16")])
def test_bytes_of_model_states_follow_the_table(width, precision):
    psi, k = (64 + 1) * 16 + (16 + 1) * 12 + (12 + 1) * 10, 4
    held = [predicted(f"strategy.stage={stage}", f"precision={precision}", workers=k) for stage in range(4)]
    for stage, parameters in enumerate((psi, psi, psi, psi / k)):
        assert held[stage]["parameters"] == pytest.approx(width * parameters, rel=0.02)  # what is cut up is padded
    assert held[0]["optimizer"] == pytest.approx((8 if precision == "fp32" else 12) * psi, rel=0.02)
    for stage in (1, 2, 3):  # m, v and a copy of the weights, in fp32
        assert held[stage]["optimizer"] == pytest.approx(12 * psi / k, rel=0.02)


def test_offload_moves_its_kinds_to_the_host():
    held = predicted("strategy.stage=3", "strategy.offload=all")
    assert held["parameters"] == held["optimizer"] == 0
    assert held["host_parameters"] > 0 and held["host_optimizer"] > 0


@pytest.mark.parametrize(
    "overrides, key",
    [
        (["strategy.stage=4"], "strategy.stage=4: must be 0, 1, 2 or 3"),
        (["strategy.stage=0", "strategy.offload=optimizer"], "strategy.offload=optimizer"),
        (["strategy.stage=2", "strategy.offload=all"], "strategy.stage=3"),
        (["sync=asp"], "strategy=zero: owns its update, and sync=asp"),
        (["hardware=virtual"], "hardware=local"),
        (["strategy.config=nowhere.json"], "cannot be read as JSON"),
        (["strategy.micro_batches=33"], "strategy.micro_batches=33: a replica's batch has batch_size=32 samples"),
        (
            ["strategy.config={zero_optimization:{stge:3}}"],
            "strategy.config: DeepSpeed refuses zero_optim.*stge=3: Extra",
        ),
        (
            ["strategy.config={elasticity:{enabled:false}}"],
            "strategy.config: DeepSpeed refuses elasticity=.*: Elastic training",
        ),
        (
            ["strategy.config={gradient_cliping:1}"],
            "gradient_cliping: DeepSpeed knows no such key; did you mean gradient_",
        ),
        (["precision=fp16", "hardware.device=cpu"], "precision=fp16: .*bf16"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(overrides, key):
    with pytest.raises(ValueError, match=key) as refused:
        prepare(["strategy=zero", *overrides]).plan()
    assert cast(Any, refused.value).exit_code == 2


def settings_with(tmp_path, theirs, **knobs):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(theirs))
    return Zero(config=str(file), **knobs).settings


def test_a_users_settings_are_merged_in(tmp_path):
    theirs = {
        "zero_optimization": {"stage": 3, "overlap_comm": True},
        "wall_clock_breakdown": True,
        "bf16": {"enabled": "auto"},
    }
    settings = settings_with(tmp_path, theirs, stage=3)
    assert settings["zero_optimization"]["overlap_comm"] is True
    assert settings["wall_clock_breakdown"] is True
    assert settings["gradient_clipping"] == 0.0  # DeepSpeed's own default would be 1


def test_a_run_keeps_what_its_file_of_settings_held(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"wall_clock_breakdown": True}))
    experiment = prepare(["strategy=zero", f"strategy.config={file}"]).experiment
    file.unlink()
    assert experiment.strategy.knobs["config"] == {"wall_clock_breakdown": True}
    assert Zero(**experiment.strategy.knobs).settings["wall_clock_breakdown"] is True


@pytest.mark.parametrize(
    "theirs, says",
    [
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage is 3 there and 2 by strategy.stage"),
        ({"gradient_clipping": 1.0}, "gradient_clipping is 1.0 there and 0.0 by clip.max"),
        ({"bf16": {"enabled": True}}, "bf16.enabled is true there and false by precision"),
        ({"zero_optimization": True}, "zero_optimization=true: must be a JSON object"),
        ({"zero_optimization": None}, "zero_optimization=null: must be a JSON object"),
        ({"zero_optimization": {"reduce_bucket_size": "big"}}, 'reduce_bucket_size="big": must be a number'),
        ({"zero_optimization": {"reduce_bucket_size": True}}, "reduce_bucket_size=true: must be a number"),
        ({"zero_optimization": {"reduce_bucket_size": float("inf")}}, "reduce_bucket_size=Infinity: must be a number"),
        ({"zero_optimization": {"reduce_bucket_size": -5}}, "reduce_bucket_size=-5: must be a number"),
        ({"zero_optimization": {"offload_param": {"device": "cpu"}}}, '"cpu" there and "none" by strategy.offload'),
        ({"gradient_accumulation_steps": 4}, "4 there and 1 by strategy.micro_batches"),
        ({"train_batch_size": 64}, "batch_size="),
        ({"torch_autocast": {"enabled": True}}, "torch_autocast.enabled is true there and false by precision"),
        ({"zero_optimization": {"allgather_bucket_size": 0}}, "allgather_bucket_size=0: must be a number"),
        ({"zero_optimization": {"zero_quantized_gradients": True}}, "ZeRO++"),
        ({"zero_optimization": {"zero_hpz_partition_size": 3}}, "ZeRO++"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor=2.0: gradients are averaged"),
        ({"tensor_parallel": {"autotp_size": 2}}, "not layers"),
        ({"tensorboard": {"enabled": True}}, "tracking="),
        ({"data_types": {"grad_accum_dtype": "fp16"}}, "precision"),
        ({"zero_force_ds_cpu_optimizer": True}, "CPU Adam"),
        ({"optimizer": {"type": "Adam"}}, "optimizer="),
        ([], "must be a JSON object"),
    ],
)
def test_a_contradiction_is_refused_with_both_values(tmp_path, theirs, says):
    with pytest.raises(ConfigError) as refused:
        settings_with(tmp_path, theirs)
    assert says in str(refused.value)


def test_what_is_switched_off_may_stand_in_the_file(tmp_path):
    off = {"tensorboard": {"enabled": False, "output_path": "x"}, "torch_autocast": {"enabled": False}}
    off |= {"gradient_predivide_factor": 1.0, "tensor_parallel": {"autotp_size": 1}}
    settings = settings_with(tmp_path, {**off, "zero_optimization": {"zero_hpz_partition_size": 1}})
    assert off.items() <= settings.items()


def test_the_key_that_deepspeed_refuses_is_named(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"wall_clock_breakdown": "yes", "dump_state": False}))
    with pytest.raises(ConfigError, match='DeepSpeed refuses wall_clock_breakdown="yes"'):
        prepare(["strategy=zero", f"strategy.config={file}"]).plan()


def test_a_state_from_the_start_is_refused_but_for_adagrads() -> None:
    class Own(torch.optim.Adagrad): ...

    parameters = [nn.Parameter(torch.randn(3, 2))]
    Zero(stage=1).check_optimizer(torch.optim.Adagrad(parameters))
    with pytest.raises(ConfigError, match=r"Own .*constructor.*strategy=data_parallel"):
        Zero(stage=1).check_optimizer(Own(parameters))


def test_a_parameter_that_is_one_number_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    model.register_parameter("scale", torch.nn.Parameter(torch.tensor(1.0)))
    with pytest.raises(ConfigError, match=r"parameter scale is one number.* Give it the shape \[1\]"):
        Zero().split(model)


@pytest.mark.parametrize("strategy", ["zero", "torch_fsdp"])
def test_a_sparse_embedding_is_refused(strategy: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Embedding(3, 2, sparse=True))
    with pytest.raises(ConfigError, match=rf"strategy={strategy}: the gradient of 1.weight is sparse.*sparse=False"):
        {"zero": Zero, "torch_fsdp": TorchFSDP}[strategy]().split(model)


@pytest.mark.parametrize("strategy", [Zero, DeepSpeedPipeline])
def test_a_layer_of_another_dtype_is_refused_and_not_rounded(strategy: Callable[[], Strategy]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
    with pytest.raises(ConfigError, match=r"parameters of torch.float64, and DeepSpeed makes all of them"):
        strategy().split(model)
    assert strategy().split(model.float())


class OfItsShape(torch.nn.Linear):
    def extra_repr(self) -> str:
        rows, columns = self.weight.shape
        return f"{rows} x {columns}"


def test_deepspeed_prints_no_layer_whose_weights_are_in_pieces():
    layer = OfItsShape(2, 2)
    layer.weight.data = torch.empty(0)  # as stage 3 leaves it between passes
    with pytest.raises(ValueError):
        repr(layer)
    assert repr(_Forward(Zero(), layer)) == "_Forward"


def test_stage_0_has_no_loss_scale_to_take_from_a_checkpoint_of_another_stage():
    engine_of_deepspeed = SimpleNamespace(optimizer=torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]))
    set_loss_scale(engine_of_deepspeed, {"cur_scale": 1.0})
    assert loss_scale(engine_of_deepspeed) == {}
