"""Quantization-aware training: weights are what torch and the papers say, and the gradient goes straight through."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import distance, identical
from safetensors.torch import load_file
from torch import Tensor, nn
from whole_runs import trained

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.strategies.adapt import Quantized
from paceline.strategies.adapt.base import Adapt
from paceline.strategies.adapt.lora import LoRA
from paceline.strategies.adapt.pufferfish import LowRank
from paceline.strategies.adapt.quantized import Kind, quantized
from paceline.strategies.core.state import state_of

KINDS: tuple[Kind, ...] = ("int8", "int4", "ternary", "binary")
SMALL = (
    *("tracking=none", "data.limit=200", "batch_size=16", "model.hidden=[32,16]", "steps=4", "evaluate.every=1000"),
    "checkpoint.every=0",
)
VIRTUAL = (*SMALL, "hardware=virtual")


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def small() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, padding="valid", groups=2),
        nn.Flatten(),
        nn.Linear(54, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    )


def hooked() -> nn.Linear:
    layer = nn.Linear(6, 6)
    layer.register_forward_hook(lambda module, given, output: output.mul(3))
    return layer


def patched() -> nn.Linear:
    layer = nn.Linear(6, 6)
    layer.forward = lambda input: 3 * nn.Linear.forward(layer, input)
    return layer


@pytest.mark.parametrize("adapt", [Quantized("int8"), LoRA(rank=2), LowRank(0.5, 1, ("*",))])
@pytest.mark.parametrize("own", [hooked, patched])
def test_a_layer_that_computes_more_than_torchs_is_left_as_it_is(adapt: Adapt, own: Callable[[], nn.Linear]) -> None:
    odd = own()
    model = adapt.apply(nn.Sequential(nn.Linear(6, 6), odd, nn.Linear(6, 6), nn.Linear(6, 6)))
    assert isinstance(model, nn.Sequential) and model[1] is odd and type(model[2]) is not nn.Linear


# -- what a weight becomes


@pytest.mark.parametrize(("kind", "most"), [("int8", 127), ("int4", 7)])
def test_integers_and_their_gradient_are_torchs_fake_quantization(kind: Kind, most: int) -> None:
    w = drawn(40, 6, 3, 3).requires_grad_()
    scale, zero = w.detach().abs().amax(dim=(1, 2, 3)) / most, torch.zeros(40, dtype=torch.int32)
    theirs = torch.fake_quantize_per_channel_affine(w, scale, zero, 0, -most, most)
    ours = quantized(w, kind)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    per_entry = scale.reshape(-1, 1, 1, 1)
    assert torch.equal((ours / per_entry).round(), (theirs / per_entry).round())
    layer = nn.Conv2d(6, 40, 3)
    layer.weight = nn.Parameter(w.detach().clone())
    model, x, wanted = Quantized(kind, ends=True).apply(layer), drawn(2, 6, 5, 5), drawn(2, 40, 3, 3)
    F.mse_loss(model(x), wanted).backward()
    F.mse_loss(F.conv2d(x, theirs, layer.bias), wanted).backward()
    torch.testing.assert_close(model.get_parameter("weight").grad, w.grad, rtol=1e-5, atol=1e-7)


def test_halves_go_to_the_even_level() -> None:
    w = torch.tensor([[7.0, 0.5, 1.5, 2.5, -0.5, -1.5]])
    assert quantized(w, "int4").tolist() == [[7.0, 0.0, 2.0, 2.0, 0.0, -2.0]]


def test_ternary_and_binary_are_the_papers_by_hand() -> None:
    w = torch.tensor([[4.0, -2.0, 1.0, -1.0], [0.0, -3.0, 3.0, 0.0], [3.0, -3.0, 1.5, 0.5]])
    # the first row: mean 2, delta 1.4, of 4 and 2 the mean is 3; the second: mean 1.5, delta 1.05; the third: 2 and 1.4
    ternary = [[3.0, -3.0, 0.0, 0.0], [0.0, -3.0, 3.0, 0.0], [2.5, -2.5, 2.5, 0.0]]
    assert quantized(w, "ternary").tolist() == ternary
    assert quantized(w, "binary").tolist() == [[2.0, -2.0, 2.0, -2.0], [1.5, -1.5, 1.5, 1.5], [2.0, -2.0, 2.0, 2.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_quantized_again_stays_as_it_is_bit_for_bit(kind: Kind) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        w = drawn(300, 37, dtype=dtype)
        once = quantized(w, kind)
        assert torch.equal(quantized(once, kind), once) and not torch.equal(once, w) and once.dtype == dtype
        assert max(len(row.unique()) for row in once) <= {"int8": 37, "int4": 15, "ternary": 3, "binary": 2}[kind]
        if kind in ("int8", "int4"):
            assert torch.equal(once.abs().amax(dim=1), w.abs().amax(dim=1)), "or scales would move by a last bit"
    nothing = torch.zeros(2, 3)
    assert torch.equal(quantized(nothing, kind), nothing)


def test_the_fewer_bits_the_larger_the_error_and_binarys_is_the_least_of_its_kind() -> None:
    w = drawn(16, 200)
    errors = [(quantized(w, kind) - w).norm().item() for kind in ("float", *KINDS)]
    assert errors == sorted(errors) and errors[0] == 0.0 and errors[1] > 0
    for other in (0.9, 1.1):  # XNOR-Net, section 3.1: mean|w| is the best alpha
        assert (quantized(w, "binary") * other - w).norm() > errors[-1]


# -- layers


def by_hand(model: nn.Sequential, kind: Kind, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `small` gives with its two inner layers quantized, and their quantized weights."""
    first, _, conv, _, hidden, _, last = model
    assert isinstance(conv, nn.Conv2d) and isinstance(hidden, nn.Linear)
    q1, q2 = (quantized(layer.weight.detach(), kind).requires_grad_() for layer in (conv, hidden))
    y = F.conv2d(first(x).relu(), q1, conv.bias, stride=2, groups=2)
    return last(F.linear(y.flatten(1), q2, hidden.bias).relu()), q1, q2


@pytest.mark.parametrize("kind", ("float", *KINDS))
def test_some_steps_are_a_plain_loops_whose_gradients_go_straight_through(kind: Kind) -> None:
    ours, theirs, adapt = small(), small(), Quantized(kind)
    model = adapt.apply(ours)
    assert list(model.state_dict()) == list(theirs.state_dict())
    mine, plain = (torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, theirs))
    x, wanted = drawn(8, 1, 8, 8), torch.arange(8) % 3
    for _ in range(5):
        mine.zero_grad()
        plain.zero_grad()
        F.cross_entropy(model(x), wanted).backward()
        outputs, q1, q2 = by_hand(theirs, kind, x)
        F.cross_entropy(outputs, wanted).backward()
        theirs.get_parameter("2.weight").grad, theirs.get_parameter("4.weight").grad = q1.grad, q2.grad
        mine.step()
        plain.step()
        assert identical(state_of(model), state_of(theirs))
    bare = small()
    bare.load_state_dict(adapt.merged(state_of(model)))
    assert torch.equal(bare(x), model(x)), "what is saved computes what was evaluated"


def test_clipped_weights_of_more_than_one_have_no_gradient() -> None:
    layer = nn.Linear(3, 1, bias=False)
    layer.weight = nn.Parameter(torch.tensor([[1.0, -1.5, 0.5]]))
    Quantized("binary", ends=True, clip=True).apply(layer)(torch.ones(1, 3)).sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.tolist() == [[1.0, 0.0, 1.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_each_samples_gradient_goes_straight_through_under_vmap(kind: Kind) -> None:
    model, x = Quantized(kind, clip=kind == "binary").apply(small()), drawn(3, 1, 8, 8)
    state = {name: each.detach() for name, each in model.named_parameters()}

    def loss(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (sample[None],)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(state, x)
    model(x).square().sum().backward()
    for name, each in model.named_parameters():
        torch.testing.assert_close(found[name].sum(0), each.grad)
    prepare([*SMALL, "adapt=quantized", f"adapt.kind={kind}", "privacy=dp_sgd"]).plan()


def test_the_ends_stay_float_unless_they_are_asked_for_and_a_size_is_packed() -> None:
    names = {False: {"2", "4"}, True: {"0", "2", "4", "6"}}
    for ends in (False, True):
        adapt = Quantized("int4", ends=ends)
        model = adapt.apply(small())
        assert {name for name, each in model.named_modules() if hasattr(each, "quantized")} == names[ends]
    # 36 + 108 + 270 + 15 weights of half a byte (the last 7.5), 18 scales and 18 biases
    assert adapt.nbytes(state_of(model)) == 18 + 54 + 135 + 8 + 4 * 18 + 4 * 18
    assert Quantized("binary", ends=True).nbytes({}) == 0
    with torch.device("meta"):
        adapt = Quantized("ternary")
        meta = adapt.apply(small())
    # 108 and 270 weights of two bits, 11 scales; the others are whole
    assert adapt.nbytes(state_of(meta)) == 27 + 68 + 4 * 11 + 4 * (36 + 15 + 18)
    adapt = Quantized("float")
    assert adapt.nbytes(state_of(adapt.apply(small()))) == 4 * (36 + 108 + 270 + 15 + 18)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.second.weight = self.first.weight


@pytest.mark.parametrize(
    ("model", "knobs", "says"),
    [
        (lambda: nn.Conv1d(1, 1, 1), {"ends": True}, "and the model has none; adapt=none"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), {}, "has two, of which the first and the last stay"),
        (Tied, {"ends": True}, "first and second have one weight (tied), and second alone"),
        (lambda: nn.Conv2d(1, 1, 3, padding_mode="circular"), {"ends": True}, "has padding_mode='circular'. Choose"),
        (lambda: nn.TransformerEncoderLayer(8, 2, 8), {"ends": True}, "reads the weights of its layers without"),
        (small, {"clip": True}, "adapt.clip=true: is for adapt.kind=binary, and adapt.kind=int8 has"),
    ],
)
def test_what_cannot_be_quantized_is_refused_by_name(model: Any, knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Quantized(**knobs).apply(model())
    assert says in str(caught.value) and str(caught.value).startswith("adapt") and caught.value.exit_code == 2


# -- runs


def test_wrong_knobs_and_strategies_that_cut_layers_end_with_status_2() -> None:
    for overrides, says in [
        (["adapt.kind=int7"], "adapt.kind='int7': must be 'float', 'int8', "),
        (["adapt.kind=int4", "adapt.clip=true"], "adapt.clip=true: is for adapt.kind=binary"),
        (["model.hidden=[16]"], "has two, of which the first and the last stay float; adapt.ends=true"),
        (["strategy=tensor"], "adapt=quantized: has swapped layers of the model that strategy=tensor would cut, "),
        (["strategy=domain", "model=cnn"], "adapt=quantized: has swapped layers of the model that strategy=domain "),
    ]:
        model = [each for each in SMALL if "model=cnn" not in overrides or not each.startswith("model.")]
        with pytest.raises(Exception, match=r"adapt|strategy") as caught:
            prepare([*model, "adapt=quantized", "hardware.workers=2", *overrides]).plan()
        assert says in str(caught.value) and getattr(caught.value, "exit_code", 0) == 2


def check_run(weights: dict[str, Tensor], told: dict[str, Any], kind: Kind) -> None:
    """The inner layer's weights are quantized, and no others; the size is theirs, packed."""
    assert identical({"w": weights["hidden2.weight"]}, {"w": quantized(weights["hidden2.weight"], kind)})
    for name in ("hidden1.weight", "output.weight"):
        assert not torch.equal(weights[name], quantized(weights[name], kind))
    bits = {"int8": 8, "int4": 4, "ternary": 2, "binary": 1}[kind]
    assert told["model_bytes"] == 32 * 16 * bits // 8 + 4 * 16 + 4 * (64 * 32 + 16 * 10 + 32 + 16 + 10)


SYNCS = ["bsp", *("local_sgd", "asp", "ssp", "parameter_server", "easgd", "gossip", "hogwild", "fedavg", "diloco")]


@pytest.mark.parametrize(
    "sync", [pytest.param(sync, marks=[] if sync == "bsp" else pytest.mark.slow) for sync in SYNCS]
)
def test_a_run_leaves_quantized_weights_and_says_what_they_take(here: Path, sync: str) -> None:
    two = (*VIRTUAL, "adapt=quantized", "adapt.kind=ternary", f"sync={sync}", "hardware.workers=2")
    weights, told = trained(*two, name="two")
    check_run(weights, told, kind="ternary")
    if sync == "bsp":
        assert told["wire"]["bytes_per_step"] == told["predicted"]["bytes_per_step"]
        assert told["memory"]["activations"] == told["predicted"]["memory"]["activations"]


@pytest.mark.slow
def test_float_is_the_model_as_it_is_bit_for_bit(here: Path) -> None:
    plain, _ = trained(*VIRTUAL, name="plain")
    same, told = trained(*VIRTUAL, "adapt=quantized", "adapt.kind=float", name="same")
    assert identical(plain, same) and told["model_bytes"] == sum(4 * each.numel() for each in plain.values())


WAYS = {
    "processes": ("hardware.workers=2",),
    "sharded": ("hardware.workers=2", "sync.shard=gradients"),
    "pipeline": ("strategy=pipeline", "strategy.micro_batches=2"),
    "torch-pipeline": ("strategy=torch_pipelining", "strategy.micro_batches=2"),
    "deepspeed-pipeline": ("strategy=deepspeed_pipeline", "strategy.micro_batches=2"),
    "hybrid": ("strategy=hybrid", "strategy.tensor=1", "hardware.workers=2", "strategy.micro_batches=1"),
    "offload": ("strategy=offload", "hardware.workers=1"),
    "ddp": ("strategy=torch_ddp", "hardware.workers=2"),
    "zero-1": ("strategy=zero", "strategy.stage=1", "hardware.workers=2"),
    "zero-2": ("strategy=zero", "strategy.stage=2", "hardware.workers=2"),
    "zero-3": ("strategy=zero", "strategy.stage=3", "hardware.workers=2"),
    "fsdp": ("strategy=torch_fsdp", "hardware.workers=2"),
}
TOGETHER = {"processes", "sharded", "ddp", "zero-1", "zero-2", "zero-3", "fsdp"}  # two replicas


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_strategy_trains_as_one_worker(here: Path, fork_server: None, way: str) -> None:
    of = ("adapt=quantized", "adapt.kind=int4")
    weights, told = trained(*SMALL, *of, *WAYS[way], name="way")
    check_run(weights, told, "int4")
    batch = f"batch_size={32 if way in TOGETHER else 16}"
    alone, _ = trained(*SMALL, *of, "strategy=single", "hardware.workers=1", batch, name="alone")
    assert distance(weights, alone) < 1e-6


@pytest.mark.slow
def test_tensor_parallelism_cuts_what_stays_float_and_trains_as_one_worker(here: Path) -> None:
    gpt = (
        "model=gpt",
        "model.n_layer=2",
        "model.n_head=2",
        "model.width=16",
        "data=text",
        "data.context=16",
        "steps=3",
    )
    of = (*(each for each in VIRTUAL if not each.startswith("model.")), *gpt, "adapt=quantized", "adapt.kind=int4")
    weights, told = trained(*of, "strategy=tensor", "hardware.workers=2", name="cut")
    assert told["wire"]["bytes_per_step"] == told["predicted"]["bytes_per_step"] > 0
    alone, _ = trained(*of, "strategy=single", "hardware.workers=1", name="alone")
    assert distance(weights, alone) < 1e-6
    assert torch.equal(quantized(weights["block2.mlp.expand.weight"], "int4"), weights["block2.mlp.expand.weight"])


@pytest.mark.dist
@pytest.mark.slow
def test_a_resumed_run_is_the_same_bits_and_its_weights_are_worth_the_same_again(here: Path, fork_server: None) -> None:
    two = ("adapt=quantized", "adapt.kind=binary", "hardware.workers=2")
    whole, told = trained(*SMALL, *two, name="whole")
    trained(*SMALL, *two, "steps=2", "checkpoint.every_steps=2", name="half")
    assert identical(trained("steps=4", resume="half")[0], whole)
    still = ("steps=1", "optimizer.lr=1e-30", "weights=runs/whole/model.safetensors")
    for more in (two, ()):  # quantized again, and as a plain model
        again, of_it = trained(*SMALL, *more, *still, name=f"again{len(more)}")
        assert identical(again, whole) and of_it["loss"] == told["loss"]
    masters = copy.deepcopy(load_file("runs/half/checkpoints/step-00000004/part-000.safetensors"))
    assert any(not torch.equal(each, quantized(each, "binary")) for each in masters.values() if each.dim() == 2)
