"""precision=bf16 and fp16: torch's own autocast and GradScaler on one worker, and one worker's training on several."""

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from paceline.engine import prepare, run
from paceline.engine.build import assemble
from paceline.engine.compose import compose
from paceline.engine.errors import ConfigError
from paceline.engine.loop import seed_for
from paceline.strategies.errors import LayoutError, NotFiniteError
from paceline.strategies.precision import BFloat16, Float16, Float32, LossScale
from paceline.strategies.precision.foreseen import Foreseen

slow = pytest.mark.slow
HERE = ["data.limit=96", "batch_size=8", "steps=6", "tracking=none", "checkpoint.every=0"]
VIRTUAL = [*HERE, "hardware=virtual"]
MLP = ["model.hidden=[16,12]"]
CNN = ["model=cnn"]
GPT = ["model=gpt", "data=text", "model.n_layer=2", "model.width=32", "model.n_head=2", "data.context=16"]
BF16, FP16 = ["precision=bf16"], ["precision=fp16", "precision.scale=1024"]
OVERFLOWS = ["precision=fp16", f"precision.scale={2.0**26}", "precision.grow_every=2"]  # in its first steps
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
    return {name: each.detach() for name, each in model.named_parameters()}, scales


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
        assert scales[0] == 2.0**25, "the first step overflowed"
        assert steps[-1]["skipped_steps"] == sum(b < a for a, b in zip([2.0**26, *scales], scales, strict=False))


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
    [
        pytest.param(way, chosen, marks=[] if (way, chosen) in QUICK else slow)
        for way in WAYS
        for chosen in CHOSEN
    ],
)
def test_several_workers_train_as_one_does_at_the_stated_bytes(tmp_path: Path, way: str, chosen: str) -> None:
    how, replicas = WAYS[way]
    result = run([*VIRTUAL, *how, *CHOSEN[chosen]], quiet=True, root=tmp_path)
    assert result is not None
    summary = result.summary
    assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"], rel=1e-14)
    model = next(each for each in (GPT, CNN, MLP) if each[0] in how)
    theirs, scales = serial(*model, *CHOSEN[chosen], replicas=replicas)
    exact, _ = serial(*model, replicas=replicas)
    begun, _ = serial(*model, "optimizer.lr=1e-30", replicas=replicas)
    # gradients of halves are rounded by themselves: as far apart as rounding leads from float32
    rounding = max(apart(theirs, exact), 2**-8 * apart(exact, begun))
    if not scales or scales[-1] == 1024:  # else steps that were skipped may be others
        assert apart(weights_of(result.path), theirs) < 4 * rounding
    if "activations" in summary["memory"]:
        assert summary["memory"]["activations"] == summary["predicted"]["memory"]["activations"]


