"""precision=bf16 and fp16: torch's own autocast and GradScaler on one worker, and one worker's training on several."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.engine.api.results import load
from paceline.engine.base.errors import UntrainedError
from paceline.engine.config.compose import compose
from paceline.engine.features.models import exported
from paceline.engine.planning.build import assemble
from paceline.engine.training.batches import seed_for
from paceline.strategies.core.errors import NotFiniteError
from paceline.strategies.core.estimated import Estimate
from paceline.strategies.core.loss_scale import scaled_backward
from paceline.strategies.core.state import state_of
from paceline.strategies.precision import BFloat16, Float16, Float32, LossScale
from paceline.testing.fabrics import FABRICS
from paceline.verify.check import verify

slow = pytest.mark.slow
HERE = ["data.limit=96", "batch_size=8", "steps=6", "tracking=none", "checkpoint.every=0"]
VIRTUAL = [*HERE, "hardware=virtual"]
MLP = ["model.hidden=[16,12]"]
CNN = ["model=cnn"]
GPT = ["model=gpt", "data=text", "model.n_layer=2", "model.width=32", "model.n_head=2", "data.context=16"]
FIRST = 2.0**20
BF16, FP16 = ["precision=bf16"], ["precision=fp16", "precision.scale=1024"]
OVERFLOWS = ["precision=fp16", f"precision.scale={FIRST}", "precision.grow_every=2"]  # some steps
Weights = dict[str, Tensor]


def weights_of(path: Path) -> Weights:
    return safetensors.torch.load_file(path / "model.safetensors")


def steps_of(path: Path) -> list[dict]:
    records = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "step"]


def serial(*overrides: str, replicas: int = 1) -> tuple[Weights, list[float]]:
    """Plain torch on what all replicas take in a step: its weights, and the loss scale after each step."""
    experiment = compose([*VIRTUAL, *overrides, "strategy=data_parallel", f"hardware.workers={replicas}"])
    parts = assemble(experiment, ())
    torch.manual_seed(experiment.seed)
    model = parts.make_model()
    optimizer = parts.make_optimizer(model.parameters())
    loss = parts.task.function(parts.data.spec)
    chosen, (split, _), partition = parts.precision, parts.load(), parts.deal()
    scaler = None
    if isinstance(chosen, Float16):
        scaler = torch.amp.GradScaler("cpu", init_scale=chosen.first, growth_interval=chosen.grow_every)
    scales: list[float] = []
    for step in range(6):
        numbers = torch.cat([partition.indices(step, replica) for replica in range(replicas)])
        taken = split.take(numbers, experiment.seed * 1_000_003 + step)
        seed_for(experiment.seed, step, 0, torch.device("cpu"))
        optimizer.zero_grad()
        with torch.autocast("cpu", chosen.dtype or torch.bfloat16, enabled=chosen.dtype is not None):
            value = loss(model(taken.inputs), taken.targets)
        if scaler is None:
            value.backward()
            optimizer.step()
        else:
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
    return exported(parts, state_of(model)), scales


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def apart(one: Weights, other: Weights) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# -- one worker is torch's own training, bit for bit

ON_ONE = {
    "bf16": [*BF16, *MLP],
    "fp16": [*FP16, *MLP],
    "overflows": [*OVERFLOWS, *MLP],
    "images": [*BF16, *CNN],
    "images in fp16": [*OVERFLOWS, *CNN],
    "a GPT": [*BF16, *GPT],
    "a GPT in fp16": [*OVERFLOWS, *GPT],
    "LoRA": [*OVERFLOWS, *GPT, "adapt=lora"],
    "Adam": [*OVERFLOWS, *MLP, "optimizer=adam"],
    "AdamW": [*OVERFLOWS, *MLP, "optimizer=adamw"],
}


@pytest.mark.parametrize("strategy", ["single", pytest.param("data_parallel", marks=slow)])
@pytest.mark.parametrize("how", [pytest.param(how, marks=[] if how == "overflows" else slow) for how in ON_ONE])
def test_one_worker_trains_as_torchs_autocast_and_scaler_do(tmp_path: Path, how: str, strategy: str) -> None:
    result = run([*VIRTUAL, *ON_ONE[how], f"strategy={strategy}", "hardware.workers=1"], quiet=True, root=tmp_path)
    theirs, scales = serial(*ON_ONE[how])
    assert result is not None
    assert same(weights_of(result.path), theirs)
    steps = steps_of(result.path)
    assert [step["loss_scale"] for step in steps if "loss_scale" in step] == scales
    if how == "overflows":
        assert scales[0] < FIRST and any(b > a for a, b in pairwise(scales)), "some steps overflow, and some do not"
        assert steps[-1]["skipped_steps"] == sum(b < a for a, b in pairwise([FIRST, *scales]))


# -- several workers: as one worker in the same precision, at the stated bytes

WAYS = {
    "two replicas": ([*MLP, "hardware.workers=2"], 2),
    "naive": ([*MLP, "hardware.workers=2", "sync=bsp_naive"], 2),
    "three, optimizer shared out": ([*MLP, "hardware.workers=3", "sync.shard=optimizer"], 3),
    "gradients shared out": ([*MLP, "hardware.workers=2", "sync.shard=gradients"], 2),
    "a server": ([*MLP, "hardware.workers=2", "sync=parameter_server"], 2),
    "clipped": ([*MLP, "hardware.workers=2", "clip=norm", "clip.max=1000"], 2),
    "pipeline": ([*MLP, "strategy=pipeline", "strategy.stages=3", "hardware.workers=3"], 1),
    "split backward": (
        [*MLP, "strategy=pipeline", "strategy.stages=3", "strategy.schedule=zb_h1", "hardware.workers=3"],
        1,
    ),
    "pipeline of a GPT": ([*GPT, "strategy=pipeline", "hardware.workers=2"], 1),
    "pipeline of a GPT that recomputes": (
        [*GPT, "model.recompute=true", "strategy=pipeline", "strategy.recompute=true", "hardware.workers=2"],
        1,
    ),
    "pipeline of images": ([*CNN, "strategy=pipeline", "hardware.workers=4"], 2),
    "tensor": ([*MLP, "strategy=tensor", "hardware.workers=2"], 1),
    "tensor of a GPT": ([*GPT, "strategy=tensor", "hardware.workers=2"], 1),
    "tensor of a GPT in slices": ([*GPT, "strategy=tensor", "strategy.sequence=true", "hardware.workers=4"], 2),
    "hybrid": ([*GPT, "strategy=hybrid", "hardware.workers=8"], 2),
    "hybrid that recomputes": (
        [*GPT, "model.recompute=true", "strategy=hybrid", "strategy.recompute=true", "hardware.workers=4"],
        1,
    ),
    "domain": ([*CNN, "strategy=domain", "hardware.workers=2"], 1),
    "offload": ([*MLP, "strategy=offload", "hardware.workers=1"], 1),
    "offload in a pool": ([*MLP, "strategy=offload", "strategy.pool_mb=0.02", "hardware.workers=2"], 2),
}
QUICK = [("two replicas", "fp16"), ("pipeline", "bf16")]
CHOSEN = {"bf16": BF16, "fp16": FP16, "overflows": OVERFLOWS}


@pytest.mark.parametrize(
    ("way", "chosen"),
    [pytest.param(way, chosen, marks=[] if (way, chosen) in QUICK else slow) for way in WAYS for chosen in CHOSEN],
)
def test_several_workers_train_as_one_does_at_the_stated_bytes(tmp_path: Path, way: str, chosen: str) -> None:
    how, replicas = WAYS[way]
    result = run([*VIRTUAL, *how, *CHOSEN[chosen]], quiet=True, root=tmp_path)
    assert result is not None
    summary = result.summary
    model = next(each for each in (GPT, CNN, MLP) if each[0] in how)
    theirs, scales = serial(*model, *CHOSEN[chosen], replicas=replicas)
    if chosen != "overflows":  # where a step is left out, less is sent
        assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"], rel=1e-14)
    own = [step["loss_scale"] for step in steps_of(result.path) if "loss_scale" in step]
    assert own[:1] == scales[:1]
    if own == scales:  # at its limit an overflow may hang on the last bit
        exact, _ = serial(*model, replicas=replicas)
        begun, _ = serial(*model, "optimizer.lr=1e-30", replicas=replicas)
        # what is added in another order is rounded in other places: as far apart as rounding leads from float32
        rounding = max(apart(theirs, exact), 2**-8 * apart(exact, begun))
        assert apart(weights_of(result.path), theirs) < 4 * rounding
    assert summary["memory"]["activations"] == summary["predicted"]["memory"]["activations"]


@slow
@pytest.mark.parametrize("chosen", CHOSEN)
def test_verify_holds_it_to_torchs_autocast_and_scaler(chosen: str) -> None:
    few = [text for text in VIRTUAL if text.partition("=")[0] not in ("steps", "tracking", "checkpoint.every")]
    tried = ["sync=bsp_naive", "sync.shard=gradients", "pipeline", "tensor"]
    workers = 1 if chosen == "overflows" else 2  # at its limit halves of a batch may overflow where the whole does not
    found = verify([*few, *MLP, *CHOSEN[chosen]], only=tried, workers=workers)
    assert found.passed, [row for row in found.rows if row.word == "fail"]
    assert found.reference is not None


# -- an overflow


MODES = {
    "bsp": [],
    "bsp, gradients shared out": ["sync.shard=gradients"],
    "bsp that compresses": ["compress=topk"],
    "bsp with a rule": ["aggregate=median"],
    "bsp_naive": ["sync=bsp_naive"],
    "parameter_server": ["sync=parameter_server"],
    "onebit_adam": ["sync=onebit_adam", "optimizer=adam", "sync.warmup=1"],
    "dion": ["sync=dion"],
    "asp": ["sync=asp"],
    "ssp": ["sync=ssp"],
    "backup_workers": ["sync=backup_workers"],
    "local_sgd": ["sync=local_sgd"],
    "post_local_sgd": ["sync=post_local_sgd"],
    "diloco": ["sync=diloco"],
    "streaming_diloco": ["sync=streaming_diloco"],
    "noloco": ["sync=noloco"],
    "fedavg": ["sync=fedavg"],
    "fedbuff": ["sync=fedbuff"],
    "easgd": ["sync=easgd"],
    "easgd_async": ["sync=easgd_async"],
    "easgd_round_robin": ["sync=easgd_round_robin"],
    "gossip": ["sync=gossip"],
    "gossip_async": ["sync=gossip_async"],
    "push_sum": ["sync=push_sum"],
    "sparta": ["sync=sparta"],
    "independent": ["sync=independent"],
    "hogwild": ["sync=hogwild"],
}


FAST = "bsp", "bsp that compresses", "parameter_server", "asp", "local_sgd", "backup_workers"


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=[] if mode in FAST else slow) for mode in MODES])
def test_a_step_that_overflows_is_left_out_by_all_and_halves_the_scale(tmp_path: Path, mode: str) -> None:
    """All steps overflow: the weights are those that it began with, though weight decay would change them."""
    moves = ["optimizer.weight_decay=0.1"]
    few = [*VIRTUAL, *MLP, *MODES[mode], *moves, "hardware.workers=2", "precision=fp16", "steps=5"]
    few = [text for text in few if text not in ("steps=6",)]
    with pytest.raises(UntrainedError, match=r"no step was taken.*each of 5 steps.*Choose a smaller precision.scale"):
        run([*few, f"precision.scale={2.0**60}"], quiet=True, root=tmp_path, name="left-out")
    result = load("left-out", tmp_path)
    assert (result.status, result.skipped_steps) == ("failed", len(steps_of(result.path)))
    begun = assemble(compose([*few]), ())
    torch.manual_seed(0)
    model = begun.make_model()
    assert apart(weights_of(result.path), {n: p.detach() for n, p in model.named_parameters()}) < 1e-7
    steps = steps_of(result.path)
    scales = [step["loss_scale"] for step in steps]
    assert scales == [2.0 ** (60 - len(scales) + i) for i in range(len(scales), 0, -1)] or scales == [
        2.0 ** (59 - i) for i in range(len(scales))
    ]
    assert steps[-1]["skipped_steps"] == len(scales)


def test_error_feedback_is_never_given_an_overflow(tmp_path: Path) -> None:
    """Some steps overflow, and those that follow are good."""
    result = run([*VIRTUAL, *MLP, *OVERFLOWS, "compress=topk", "hardware.workers=2"], quiet=True, root=tmp_path)
    assert result is not None
    steps = steps_of(result.path)
    assert 0 < steps[-1]["skipped_steps"] < len(steps)
    assert result.status == "completed" and result.skipped_steps == steps[-1]["skipped_steps"]
    assert all(bool(each.isfinite().all()) for each in weights_of(result.path).values())


def test_where_one_replica_overflows_no_replica_steps() -> None:
    """Worker 1 alone has an infinite gradient, in its third step."""
    for scales, weight in FABRICS["virtual"](2, three_steps):
        assert scales == [8.0, 8.0, 4.0]
        assert float(weight) == 1.0 - 2, "of three steps two were made"


def three_steps(comm: Comm) -> tuple[list[float], Tensor]:
    scale, weight = LossScale(8.0, 100), nn.Parameter(torch.ones(1))
    scale.among = comm
    scale.watch([weight], hooks=True)
    optimizer, scales = torch.optim.SGD([weight], lr=1.0), []
    for step in range(3):
        optimizer.zero_grad()
        value = math.inf if (comm.rank, step) == (1, 2) else 1.0
        scaled_backward(weight.sum() * value, scale).backward()
        if not scale.overflowed(comm.rank):
            optimizer.step()
        scales.append(scale.value)
    return scales, weight.detach()


# -- the scale


def test_the_scale_doubles_after_good_steps_and_halves_at_a_bad_one_as_torchs_does() -> None:
    ours, theirs = LossScale(8.0, 3), torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    weight = nn.Parameter(torch.ones(3))
    ours.watch([weight], hooks=True)
    other = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([other], lr=1.0)
    for bad in [False, False, True, False, False, False, False, True, True, False]:
        value = torch.tensor([1.0, float("inf") if bad else 2.0, 3.0])
        weight.grad = other.grad = None
        (weight * value * ours.value).sum().backward()
        theirs.scale((other * value).sum()).backward()
        assert ours.overflowed(0) == bad
        theirs.step(optimizer)
        theirs.update()
        assert ours.value == theirs.get_scale()
        if not bad:
            gradient = cast(torch.Tensor, weight.grad)
            assert torch.equal(gradient, torch.tensor([1.0, 2.0, 3.0])), "it is divided before anybody sees it"
    again = LossScale(1.0, 3)
    again.load_state_dict(ours.state_dict())
    assert again.state_dict() == ours.state_dict() and again.value == ours.value


def test_a_scale_below_one_ends_the_run_before_a_weight_changes() -> None:
    scale, weight = LossScale(1.0, 3), nn.Parameter(torch.ones(1))
    scale.watch([weight], hooks=True)
    (weight * float("nan")).sum().backward()
    with pytest.raises(NotFiniteError, match=r"worker 3 diverged.*precision=bf16") as caught:
        scale.overflowed(3)
    assert caught.value.exit_code == 6


def test_weights_keep_updates_that_narrow_ones_would_lose() -> None:
    """A step of 2^-12 of a weight: float32 keeps it, bfloat16 rounds it away."""
    few = [*VIRTUAL, *MLP, *BF16, "optimizer.momentum=0", "optimizer.lr=1e-5"]
    parts = assemble(compose(few), ())
    torch.manual_seed(0)
    model = parts.make_model()
    parts.precision.attach(model, torch.device("cpu"))
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    taken = parts.load()[0].take(torch.arange(32), 0)
    loss = parts.precision.loss(parts.task.function(parts.data.spec))
    optimizer = parts.make_optimizer(model.parameters())
    loss(model(taken.inputs), taken.targets).backward()
    optimizer.step()
    changed = {name: each.detach() for name, each in model.named_parameters()}
    assert all(each.dtype is torch.float32 for each in changed.values())
    kept = sum(int((changed[name] != before[name]).sum()) for name in before)
    narrow = sum(int((changed[name].bfloat16() != before[name].bfloat16()).sum()) for name in before)
    assert kept > 100 and narrow < kept / 20


# -- evaluation, messages, casts


def test_evaluation_is_of_the_weights_as_they_are(tmp_path: Path) -> None:
    model, precision = nn.Linear(3, 2), BFloat16()
    precision.attach(model, torch.device("cpu"))
    x = torch.randn(4, 3)
    assert model(x).dtype is torch.bfloat16
    assert torch.equal(model.eval()(x), nn.functional.linear(x, model.weight, model.bias))


MODELS = {"mlp": MLP, "cnn": CNN, "resnet": ["model=resnet"], "gpt": GPT, "vit": ["model=vit", "data=fashion_mnist"]}


@pytest.mark.parametrize("name", ["mlp", *(pytest.param(name, marks=slow) for name in MODELS if name != "mlp")])
def test_the_meta_device_casts_as_the_cpu_does(name: str) -> None:
    """The dtype of each layer's output."""
    parts = assemble(compose([*VIRTUAL, *MODELS[name], *BF16, "strategy=data_parallel"]), ())

    def dtypes(model: nn.Module, inputs: Tensor) -> list[torch.dtype]:
        found: list[torch.dtype] = []

        def note(layer: nn.Module, given: object, output: object) -> None:
            if isinstance(output, Tensor):
                found.append(output.dtype)

        for layer in model.modules():
            layer.register_forward_hook(note)
        model(inputs)
        return found

    inputs = parts.load()[0].take(torch.arange(4), 0).inputs
    assert isinstance(inputs, Tensor)
    with torch.device("cpu"):
        model = parts.make_model()
    BFloat16().attach(model, torch.device("cpu"))
    estimated = dtypes(parts.modules[0], inputs.to("meta"))
    assert estimated == dtypes(model, inputs)
    assert torch.bfloat16 in estimated


def test_on_a_gpu_norms_are_foreseen_in_float32() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to("meta")
    x = torch.empty(2, 4, device="meta")
    for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float32)):
        with torch.autocast("cpu", torch.bfloat16), Estimate(torch.device(device)):
            assert layers(x).dtype is dtype
    with Estimate(torch.device("cuda")):
        assert layers(x).dtype is torch.float32


@pytest.mark.parametrize(
    ("how", "halves"),
    [
        ([*MLP, "strategy=pipeline"], True),  # a linear layer's output, after its activation
        pytest.param([*MLP, "strategy=tensor", "strategy.vocabulary=false"], True, marks=slow),
        pytest.param([*GPT, "strategy=pipeline"], False, marks=slow),  # the residual stream stays float32
        pytest.param([*MLP], False, marks=slow),  # gradients are float32
    ],
)
def test_what_travels_is_of_the_dtype_that_autocast_gives_it(how: list[str], halves: bool) -> None:
    sent = [prepare([*VIRTUAL, *how, "hardware.workers=2", *more]).plan().bytes_per_step() for more in ([], BF16)]
    assert sent[0] and sent[1] == sent[0] / (2 if halves else 1)


def test_narrow_activations_are_planned() -> None:
    wide, narrow = (
        prepare([*VIRTUAL, "model.hidden=[64,64]", "batch_size=256", *more]).plan().peak_memory() for more in ([], BF16)
    )
    assert narrow["activations"] < 0.8 * wide["activations"]
    assert {kind: narrow[kind] for kind in ("parameters", "gradients", "optimizer")} == {
        kind: wide[kind] for kind in ("parameters", "gradients", "optimizer")
    }


# -- refusals


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (
            ["strategy=torch_tensor", *BF16],
            "precision=bf16: computes in bf16, and strategy=torch_tensor states messages",
        ),
        (
            ["strategy=deepspeed_pipeline", *FP16],
            "precision=fp16: computes in fp16, and strategy=deepspeed_pipeline sets",
        ),
        (
            ["strategy=pipeline", "strategy.schedule=pipedream", *FP16],
            "precision=fp16: leaves out steps whose gradients overflow, and strategy=pipeline with",
        ),
        (
            ["strategy=offload", "strategy.delayed_update=true", *FP16],
            "precision=fp16: leaves out steps whose gradients overflow, and strategy=offload with strategy.del",
        ),
        (["precision=fp16", "precision.scale=1000"], "precision.scale=1000: must be a power of two"),
        (["precision=fp16", "precision.scale=0.5"], "precision.scale="),
        (["precision=fp16", "precision.grow_every=0"], "precision.grow_every="),
        (["precision=int8"], "precision=int8: there is no such choice; valid: bf16, fp16, fp32"),
        (["strategy=zero", "strategy.precision=bf16"], "strategy.precision: there is no such key"),
    ],
)
def test_what_cannot_be_is_refused_by_name(how: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(says)) as caught:
        prepare([*how, *MLP, "hardware.workers=2"]).plan()
    assert caught.value.exit_code == 2


def test_weights_that_are_not_float32_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^precision=bf16: .*weights of this model are float64. Choose precision=fp32"
    ):
        BFloat16().check([nn.Linear(2, 2).double()])
    Float32().check([nn.Linear(2, 2).double()])


# -- real processes

PROCESSES = [*HERE, *MLP, "hardware.threads=1", "hardware.device=cpu"]


@pytest.mark.dist
@slow
@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize(
    "how",
    [
        ["strategy=data_parallel"],
        ["strategy=torch_ddp"],
        ["strategy=torch_zero_optimizer", "optimizer=adam"],
        ["strategy=torch_fsdp"],
        ["strategy=torch_pipelining"],
        ["strategy=pipeline", "strategy.schedule=1f1b"],
    ],
    ids=lambda how: how[0].partition("=")[2],
)
def test_processes_and_torchs_engines_train_as_one_worker_does(
    fork_server: None, tmp_path: Path, how: list[str], chosen: str
) -> None:
    result = run([*PROCESSES, *how, *CHOSEN[chosen], "hardware.workers=2"], quiet=True, root=tmp_path)
    assert result is not None
    summary, replicas = result.summary, 1 if "pipelin" in how[0] else 2
    more = [text for text in how if text.startswith("optimizer")]
    theirs, scales = serial(*MLP, *more, *CHOSEN[chosen], replicas=replicas)
    if chosen == "overflows":
        assert steps_of(result.path)[0]["loss_scale"] == scales[0] < FIRST
    else:
        assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"], rel=1e-14)
        exact, _ = serial(*MLP, *more, replicas=replicas)
        begun, _ = serial(*MLP, "optimizer.lr=1e-30", replicas=replicas)
        rounding = max(apart(theirs, exact), 2**-8 * apart(exact, begun))
        assert apart(weights_of(result.path), theirs) < 4 * rounding
    held, stated = summary["memory"]["activations"], summary["predicted"]["memory"]["activations"]
    assert held == pytest.approx(stated, rel=0.15)


@pytest.mark.dist
@slow
@pytest.mark.parametrize(
    "how",
    [
        ["strategy=single"],
        ["hardware.workers=2"],
        ["hardware.workers=2", "sync.shard=gradients"],
        ["hardware.workers=2", "sync=local_sgd"],
        ["hardware.workers=2", "sync=parameter_server"],
        ["hardware.workers=2", "compress=topk"],
        ["hardware.workers=2", "strategy=pipeline"],
        ["hardware.workers=2", "strategy=torch_fsdp"],
    ],
    ids=" ".join,
)
def test_a_resumed_run_has_the_scale_and_the_weights_of_the_uninterrupted_one(
    fork_server: None, tmp_path: Path, how: list[str]
) -> None:
    few = [text for text in PROCESSES if not text.startswith("checkpoint")]
    whole = run(
        [*few, *how, *OVERFLOWS, "checkpoint.every_steps=2", "checkpoint.keep=9"], quiet=True, root=tmp_path, name="run"
    )
    assert whole is not None
    straight, scales = weights_of(whole.path), [step["loss_scale"] for step in steps_of(whole.path)]
    assert len(set(scales)) > 1
    oldest = sorted(path.name for path in (whole.path / "checkpoints").iterdir())[0]
    again = run([], quiet=True, root=tmp_path, resume=f"run@{oldest}")
    assert again is not None
    assert same(weights_of(again.path), straight)
    assert [step["loss_scale"] for step in steps_of(again.path)][-4:] == scales[-4:]


@pytest.mark.dist
@slow
def test_deepspeed_is_given_the_precision(fork_server: None, tmp_path: Path) -> None:
    from paceline.strategies.zero import Zero

    assert Zero(precision=BFloat16()).settings["bf16"] == {"enabled": True}
    scaled = Zero(precision=Float16(1024.0, 7)).settings["fp16"]
    assert (scaled["initial_scale_power"], scaled["loss_scale_window"]) == (10, 7)
    result = run([*PROCESSES, "strategy=zero", *BF16, "hardware.workers=2"], quiet=True, root=tmp_path)
    assert result is not None
    wire, stated = result.summary["wire"]["bytes_per_step"], result.summary["predicted"]["bytes_per_step"]
    assert wire == pytest.approx(stated, rel=1e-14)
    theirs, _ = serial(*MLP, replicas=2)
    assert apart(weights_of(result.path), theirs) < 0.02
