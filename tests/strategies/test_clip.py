"""clip=norm and clip=value: torch's own on one worker, one number over a model's parts, and serial training."""

import math
from dataclasses import dataclass

import pytest
import safetensors.torch
import torch
from oracles import ROUNDING, Case, Plan, Weights, distance, momentum, train, weights_of, workers_of
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.exchange.clip import ByNorm, ByValue, Clip, Shared, Unclipped
from paceline.strategies import Strategy
from paceline.strategies.core.errors import NotFiniteError
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.hybrid import Hybrid
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.single import Single
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.strategies.sync.parameter_server import ParameterServer
from paceline.strategies.tensor import TensorParallel
from paceline.testing.fabrics import FABRICS

SHORT = 0.3  # the gradients of `Case` are longer: from 0.5 to 1.2
slow = pytest.mark.slow


def grads(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"w": (5, 7), "b": (7,), "s": ()}
    return {name: (scale * torch.randn(shape, generator=generator)).to(dtype) for name, shape in shapes.items()}


def as_parameters(gradients: dict[str, torch.Tensor]) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros_like(each)) for each in gradients.values()]
    for parameter, gradient in zip(made, gradients.values(), strict=True):
        parameter.grad = gradient.clone()
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("most", [0.1, 1e3])
def test_on_one_worker_it_is_torchs_bit_for_bit(dtype: torch.dtype, most: float) -> None:
    for clip, torchs in ((ByNorm(most), clip_grad_norm_), (ByValue(most), clip_grad_value_)):
        ours, theirs = grads(dtype), as_parameters(grads(dtype))
        told = torchs(theirs, most)
        clip.apply(ours, 0)
        assert all(b.grad is not None and torch.equal(a, b.grad) for a, b in zip(ours.values(), theirs, strict=True))
        if isinstance(clip, ByNorm):
            assert clip.norm == told.item()


def test_a_gradient_of_parameters_of_two_dtypes_has_one_norm() -> None:
    ours = {**grads(), **{f"{name}64": each for name, each in grads(torch.float64).items()}}
    ByNorm(0.5).apply(ours, 0)
    assert math.sqrt(sum(float(each.double().square().sum()) for each in ours.values())) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_said_before_a_gradient_is_changed(value: float) -> None:
    ours = grads()
    ours["w"][2, 3] = value
    before = {name: each.clone() for name, each in ours.items()}
    with pytest.raises(NotFiniteError, match=f"worker 3 diverged: the norm of its gradient is {value}") as caught:
        ByNorm(1.0).apply(ours, 3)
    assert caught.value.exit_code == 6
    assert all(torch.equal(each, before[name]) or name == "w" for name, each in ours.items())


@pytest.mark.parametrize("clip", [ByNorm(), ByValue()])
def test_sparse_gradients_are_refused_by_name(clip: Clip) -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1, 4])).sum().backward()
    assert embedding.weight.grad is not None
    with pytest.raises(ConfigError, match="a gradient of this model is sparse"):
        clip.apply({"e": embedding.weight.grad}, 0)


def in_shares(comm: Comm) -> tuple[torch.Tensor, float | None]:
    """Of 12 numbers, half of the replicas' group each; both halves of the group have the same."""
    whole, place = torch.arange(1.0, 13.0), comm.rank % 2
    clip, own = ByNorm(1.0), whole.split(6)[place].clone()
    clip.apply({"x": own}, comm.rank, shared=Shared(comm, copies=comm.size // 2))
    return own, clip.norm


@pytest.mark.parametrize("workers", [2, 4])
def test_what_replicas_share_out_is_counted_once(workers: int) -> None:
    norm = float(torch.arange(1.0, 13.0).norm())
    for own, told in FABRICS["virtual"](workers, in_shares):
        assert told == pytest.approx(norm, rel=1e-6)
        assert float(own.norm()) < 1


def serial(case: Case, clip: Clip | None) -> Weights:
    """Plain torch, with torch's own clipping."""
    model = case.start()
    optimizer = case.optimizer(model.parameters())
    for step in range(len(case.sizes)):
        inputs, targets = case.step(step)
        optimizer.zero_grad()
        case.loss(model(inputs), targets).backward()
        if isinstance(clip, ByNorm):
            assert float(clip_grad_norm_(model.parameters(), clip.max)) > clip.max, "it is too long, or nothing is seen"
        if isinstance(clip, ByValue):
            clip_grad_value_(model.parameters(), clip.max)
        optimizer.step()
    return weights_of(model)


@dataclass(frozen=True)
class Way:
    """`sizes`: of a step's batch, by replica."""

    strategy: type[Strategy]
    knobs: dict
    sizes: list[int]
    sync: type = BSP
    sync_knobs: dict | None = None


WAYS = {
    "serial": Way(Single, {}, [6]),
    "two replicas": Way(DataParallel, {}, [4, 2]),
    "three replicas": Way(DataParallel, {}, [3, 1, 2]),
    "naive": Way(DataParallel, {}, [4, 2], NaiveBSP),
    "optimizer shared out": Way(DataParallel, {}, [3, 1, 2], BSP, {"shard": "optimizer"}),
    "gradients shared out": Way(DataParallel, {}, [4, 2], BSP, {"shard": "gradients"}),
    "pipeline": Way(Pipeline, {"stages": 3, "micro_batches": 2}, [6]),
    "tensor": Way(TensorParallel, {"degree": 2}, [6]),
    "pipeline x tensor x data": Way(Hybrid, {"stages": 2, "tensor": 2, "cut": [4]}, [4, 2]),
    "shared out pipeline": Way(Pipeline, {"stages": 2, "micro_batches": 2}, [4, 2], BSP, {"shard": "optimizer"}),
    "one worker and a server": Way(DataParallel, {}, [6], ParameterServer),
}
FAST = "pipeline x tensor x data", "two replicas", "gradients shared out"


def blocks64() -> nn.Sequential:
    """Two pairs of layers that tensor workers cut, one on each stage, and norms that all of them hold whole."""
    pair = [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.LayerNorm(6)]
    return nn.Sequential(*pair, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


@pytest.mark.parametrize("clip", [ByNorm, ByValue])
@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way in FAST else slow) for way in WAYS])
def test_it_trains_as_one_worker_with_torchs_clipping_does(way: str, clip: type[ByNorm] | type[ByValue]) -> None:
    it = WAYS[way]
    chosen = clip(SHORT if clip is ByNorm else 0.02)
    case = Case([it.sizes] * 3, blocks64, momentum)
    if it.strategy is Single:
        plan = Plan(Single(chosen), BSP(), case)
    else:
        plan = Plan(it.strategy(**it.knobs), it.sync(**(it.sync_knobs or {}), clip=chosen), case)
    results = FABRICS["virtual"](workers_of(plan), train, plan)
    whole = results[plan.strategy.loss_part]["whole"]
    assert distance(whole, serial(case, chosen)) < 10 * ROUNDING
    assert distance(whole, serial(case, None)) > 1e-4, "clipping made a difference"


# -- whole runs

FEW = ["hardware=virtual", "data.limit=96", "batch_size=8", "steps=12", "model.hidden=[16,12]", "tracking=none"]


@pytest.mark.parametrize(
    "how",
    [
        ["strategy=pipeline", "strategy.stages=3", "hardware.workers=6", "clip=norm"],
        pytest.param(["sync.shard=gradients", "hardware.workers=3", "clip=norm"], marks=slow),
        pytest.param(["strategy=tensor", "hardware.workers=4", "clip=norm"], marks=slow),
        pytest.param(
            ["strategy=hybrid", "model=gpt", "data=text", "model.n_layer=2", "hardware.workers=4", "clip=norm"],
            marks=slow,
        ),
        pytest.param(["strategy=pipeline", "sync=local_sgd", "hardware.workers=4", "clip=norm"], marks=slow),
        pytest.param(["strategy=pipeline", "sync=asp", "hardware.workers=4", "clip=norm"], marks=slow),
        pytest.param(["strategy=pipeline", "hardware.workers=4", "clip=value"], marks=slow),
    ],
)
def test_measured_bytes_are_the_stated_ones_and_the_norm_is_recorded(tmp_path, monkeypatch, how: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    few = [text for text in FEW if "model=gpt" not in how or not text.startswith("model")]
    result = run([*few, *how], quiet=True)
    assert result is not None
    summary = result.summary
    assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"], rel=1e-14)
    if "clip=norm" in how:
        assert '"unclipped_norm"' in (result.path / "metrics.jsonl").read_text()


@pytest.mark.dist
@slow
@pytest.mark.parametrize(
    "how",
    [
        ["strategy=torch_ddp"],
        ["strategy=torch_fsdp"],
        ["strategy=torch_fsdp", "strategy.shard_over=2", "hardware.workers=4"],
        ["strategy=zero", "strategy.stage=2"],
    ],
)
def test_torchs_and_deepspeeds_engines_clip_as_serial_training_does_at_the_stated_bytes(
    fork_server, tmp_path, how: list[str]
) -> None:
    here = [*FEW[1:], "hardware.threads=1", "hardware.device=cpu", "clip=norm", "clip.max=0.5", "checkpoint.every=0"]
    result = run([*here, "hardware.workers=2", *how], quiet=True, root=tmp_path)
    workers = 4 if "hardware.workers=4" in how else 2
    plain = [text for text in here if not text.startswith("batch_size")]
    serial = run([*plain, "strategy=single", f"batch_size={8 * workers}"], quiet=True, root=tmp_path)
    assert result is not None and serial is not None
    wire, stated = result.summary["wire"]["bytes_per_step"], result.summary["predicted"]["bytes_per_step"]
    assert wire == pytest.approx(stated, rel=1e-14)
    made, wanted = (safetensors.torch.load_file(each.path / "model.safetensors") for each in (result, serial))
    assert distance(made, wanted) < 1e-5


def test_a_bound_that_is_not_above_zero_is_refused() -> None:
    for most in ("0", "-1", ".nan", ".inf"):
        with pytest.raises(ConfigError, match=r"clip\.max=") as caught:
            prepare(["clip=norm", f"clip.max={most}"]).plan()
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (["sync=onebit_adam", "optimizer=adam"], "clip=norm: sync=onebit_adam takes no clip. Choose sync=bsp, "),
        (["sync=dion"], "clip=norm: sync=dion takes no clip"),
        (["strategy=offload", "strategy.delayed_update=true"], "clip=norm: strategy=offload"),
        (["strategy=pipeline", "strategy.schedule=pipedream"], "clip=norm: strategy=pipeline"),
    ],
)
def test_where_there_is_no_one_gradient_to_clip_it_is_refused_by_name(how: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare([*how, "model.hidden=[16,12]", "clip=norm"]).plan()
    assert str(caught.value).startswith(says) and caught.value.exit_code == 2


def test_deepspeed_is_given_the_bound_and_has_no_other_rule() -> None:
    from paceline.strategies.zero import Zero

    assert Zero(clip=ByNorm(0.5)).settings["gradient_clipping"] == 0.5
    assert Zero(clip=Unclipped()).settings["gradient_clipping"] == 0.0
    with pytest.raises(ConfigError, match="by its norm alone"):
        Zero(clip=ByValue())
