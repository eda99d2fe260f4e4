"""LoRA: it begins as the base, bit for bit; merged equals unmerged; only factors travel, and are saved apart."""

import copy
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from oracles import distance, identical
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from whole_runs import trained

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.strategies.adapt import LoRA
from paceline.strategies.core.state import state_of
from paceline.tasks.data.digits import Digits

SMALL = (
    *("tracking=none", "data.limit=200", "batch_size=16", "model.hidden=[32,16]", "steps=4", "evaluate.every=1000"),
    "checkpoint.every=0",
)
VIRTUAL = (*SMALL, "hardware=virtual")
ENTRIES = 8 * (64 + 32 + 32 + 16 + 16 + 10)  # r (in + out) of the three layers


def base(**how: bool) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5, **how), nn.ReLU(), nn.Linear(5, 4)).double()


def grown(lora: LoRA) -> nn.Module:
    """Adapted, with a B that is not zero any more."""
    model = lora.apply(base())
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert "lora" in name
            nn.init.normal_(parameter)
    return model


def test_it_begins_as_the_base_bit_for_bit_and_draws_after_it() -> None:
    x = torch.randn(7, 6, dtype=torch.float64)
    adapted = LoRA(rank=2, dropout=0.5).apply(base())
    assert torch.equal(adapted(x), base()(x))
    assert all(torch.equal(state_of(adapted)[name], tensor) for name, tensor in state_of(base()).items())
    again = LoRA(rank=2, dropout=0.5).apply(base())
    assert identical(state_of(adapted), state_of(again))


def test_a_layer_is_the_papers_equation_and_merged_equals_unmerged() -> None:
    lora, x = LoRA(rank=2, alpha=3.0), torch.randn(7, 6, dtype=torch.float64)
    model, plain = grown(lora), base()
    state = state_of(model)
    w, a, b = state["0.weight"], state["0.lora_A"], state["0.lora_B"]
    h = (w @ x.T + state["0.bias"][:, None] + 3.0 / 2 * b @ (a @ x.T)).T
    torch.testing.assert_close(model.get_submodule("0")(x), h, rtol=1e-12, atol=1e-12)
    plain.load_state_dict(lora.merged(state))
    torch.testing.assert_close(plain(x), model(x), rtol=1e-12, atol=1e-12)
    assert lora.added(frozenset(state)) == state.keys() - plain.state_dict().keys()


def test_a_base_in_bf16_computes_with_rounded_weights_and_keeps_no_widened_ones() -> None:
    torch.manual_seed(2)
    plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    rounded = copy.deepcopy(plain)
    with torch.no_grad():
        for name, each in rounded.named_parameters():
            each.copy_(each.bfloat16() if name.endswith("weight") else each)
    held, oracle = LoRA(rank=2, base="bf16").apply(plain), LoRA(rank=2).apply(rounded)
    factors = {name: each for name, each in oracle.named_parameters() if each.requires_grad}
    for name, each in held.named_parameters():
        assert each.dtype == (torch.bfloat16 if name.endswith("weight") else torch.float32)
        if each.requires_grad:
            each.data.copy_(nn.init.normal_(factors[name]))
    x, kept = torch.randn(3, 64), list[Tensor]()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = held(x)
    assert not any(each.dtype == torch.float32 and each.shape == (64, 64) for each in kept)
    assert torch.equal(outputs, oracle(x))
    outputs.square().sum().backward()
    oracle(x).square().sum().backward()
    gradients = {name: each.grad for name, each in held.named_parameters() if each.grad is not None}
    assert identical(gradients, {name: each.grad for name, each in factors.items() if each.grad is not None})
    assert gradients.keys() == factors.keys()
    merged = LoRA(rank=2, base="bf16").merged(state_of(held))
    assert {each.dtype for each in merged.values()} == {torch.float32}
    torch.testing.assert_close(merged["0.weight"], LoRA(rank=2).merged(state_of(oracle))["0.weight"], rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_plan_of_a_base_in_bf16_holds_half_of_its_matrices_and_no_more_activations(precision: str) -> None:
    made = ["model=gpt", "data=text", "adapt=lora", "tracking=none", "strategy=single", f"precision={precision}"]
    wide, held = (prepare([*made, f"adapt.base={base}"]).plan().parts[0].memory for base in ("fp32", "bf16"))
    matrices = 4 * 128 * 12 * 128 + 128 * 256
    assert wide["parameters"] - held["parameters"] == 2 * matrices
    assert held["activations"] <= wide["activations"]
    assert (held["gradients"], held["optimizer"]) == (wide["gradients"], wide["optimizer"])


def test_a_run_with_a_base_in_bf16_sends_its_factors_alone_and_exports_float32(here) -> None:
    how = [*VIRTUAL, "adapt=lora", "adapt.base=bf16", "hardware.workers=2"]
    weights, told = trained(*how, name="held")
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())
    assert told["wire"]["bytes_per_step"] == told["predicted"]["bytes_per_step"] == 4 * ENTRIES
    assert told["memory"]["parameters"] == prepare(how).plan().peak_memory()["parameters"]
    assert Path("runs/held/adapter/adapter_model.safetensors").exists()
    with pytest.raises(ConfigError, match=r"^strategy=torch_fsdp: FSDP2 wants parameters of one dtype.* Choose"):
        prepare([*SMALL, *how[len(VIRTUAL) :], "strategy=torch_fsdp"]).plan()


@pytest.mark.budget(2)
def test_offload_holds_a_base_of_few_bits_and_trains_as_one_worker_does(here) -> None:
    how = [*VIRTUAL, "adapt=lora", "adapt.base=int8", "hardware.workers=1"]
    one, moved = (trained(*how, f"strategy={each}", name=each)[0] for each in ("data_parallel", "offload"))
    assert max((one[name] - moved[name]).abs().max() for name in one) < 1e-6


def test_each_samples_gradient_is_taken_through_a_base_in_bf16(here) -> None:
    weights, _ = trained(*VIRTUAL, "adapt=lora", "adapt.base=bf16", "hardware.workers=2", "privacy=dp_sgd", name="held")
    assert all(tensor.isfinite().all() for tensor in weights.values())
    held = LoRA(rank=2, base="bf16").apply(base().float())
    names = [name for name, each in held.named_parameters() if each.requires_grad]
    nn.init.normal_(held.get_parameter("2.lora_B"))
    state, x = dict(held.named_parameters()), torch.randn(3, 6)

    def loss(factors: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(held, {**state, **factors}, (sample[None],)).square().sum()

    factors = {name: state[name].detach() for name in names}
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(factors, x)
    held(x).square().sum().backward()
    for name in names:
        torch.testing.assert_close(found[name].sum(0), state[name].grad)


def test_only_the_layers_that_are_named_are_adapted() -> None:
    model = LoRA(rank=2, modules=["2"]).apply(base())
    assert {name for name, each in model.named_parameters() if each.requires_grad} == {"2.lora_A", "2.lora_B"}
    shared = nn.Linear(4, 4)
    twice = LoRA(rank=2).apply(nn.Sequential(shared, nn.ReLU(), shared))
    assert twice.get_submodule("0") is twice.get_submodule("2") is not shared


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.second.weight = self.first.weight


def hooked() -> nn.Module:
    model = base()
    model.get_parameter("2.weight").register_hook(lambda gradient: 0 * gradient)
    return model


@pytest.mark.parametrize(
    ("model", "knobs", "says"),
    [
        (base, {"rank": 5}, "adapt.rank=5: the layer 2 has a matrix of [4, 5], whose rank is at most 4. Choose"),
        (base, {"rank": 2, "modules": ["query"]}, "no linear layer is called query; there are 0, 2"),
        (lambda: nn.Sequential(nn.Conv2d(1, 1, 1)), {}, "and the model has none; adapt=none"),
        (lambda: nn.Sequential(nn.Linear(9, 9), nn.BatchNorm1d(9)), {}, "1 would keep running statistics"),
        (hooked, {"rank": 2}, "the weight of 2 has a hook on its gradient"),
        (Two, {"rank": 2}, "first and second have one weight (tied)"),
        (lambda: nn.TransformerEncoderLayer(8, 2, 8), {}, "reads the weights of its layers without calling them"),
        (lambda: LoRA(rank=2).apply(base()), {}, "the model has none; adapt=none"),
    ],
)
def test_what_cannot_be_adapted_is_refused_by_name(model, knobs, says) -> None:
    with pytest.raises(ConfigError) as caught:
        LoRA(**knobs).apply(model())
    assert says in str(caught.value) and str(caught.value).startswith("adapt") and caught.value.exit_code == 2


def test_a_wrong_knob_or_pattern_ends_the_command_with_status_2() -> None:
    for override, says in [
        ("adapt.rank=0", "adapt.rank=0: must be greater than or equal to 1"),
        ("adapt.modules=[query]", "there are hidden1, hidden2, output"),
        ("adapt.modules=[]", "adapt.modules=[]: "),
    ]:
        with pytest.raises(Exception, match="adapt") as caught:
            prepare([*SMALL, "adapt=lora", override]).plan()
        assert says in str(caught.value) and getattr(caught.value, "exit_code", 0) == 2


def test_a_plan_of_gpt_sends_the_bytes_of_its_factors_alone() -> None:
    made = ["model=gpt", "data=text", "hardware.workers=2", "adapt=lora", "tracking=none"]
    plan = prepare([*made, "adapt.modules=[qkv]"]).plan()
    assert plan.bytes_per_step() == 4 * 4 * 8 * (128 + 384)
    [part] = plan.parts
    assert part.memory["gradients"] == part.memory["optimizer"] == 4 * 4 * 8 * (128 + 384)
    with pytest.raises(ConfigError, match=r"^adapt=lora: has swapped layers of the model that strategy=tensor"):
        prepare([*made, "strategy=tensor"]).plan()


def check_run(weights: dict, told: dict, before: dict, run: Path) -> None:
    """The base is what it was, merged weights are that and the product, and the adapter is what peft's layout says."""
    apart = load_file(run / "adapter" / "adapter_model.safetensors")
    assert sum(each.numel() for each in apart.values()) == ENTRIES
    config = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == 8 and config["lora_alpha"] == 16 and config["peft_type"] == "LORA"
    assert set(config["target_modules"]) == {"hidden1", "hidden2", "output"}
    for name, merged in weights.items():
        layer, _, own = name.rpartition(".")
        if own != "weight":
            assert torch.equal(merged, before[name])
            continue
        a, b = (apart[f"base_model.model.{layer}.{each}.weight"] for each in ("lora_A", "lora_B"))
        assert torch.equal(merged, before[name] + 2.0 * (b @ a)) and b.abs().sum() > 0


@pytest.mark.parametrize(
    "sync", ["bsp", *(pytest.param(each, marks=pytest.mark.slow) for each in ("local_sgd", "asp"))]
)
def test_a_run_sends_its_factors_alone_and_begins_with_weights_of_another(here, sync: str) -> None:
    before, _ = trained(*VIRTUAL, name="base")
    begins = "weights=runs/base/model.safetensors"
    weights, told = trained(*VIRTUAL, "adapt=lora", begins, f"sync={sync}", "hardware.workers=2", name="adapted")
    if sync == "bsp":
        assert told["wire"]["bytes_per_step"] == told["predicted"]["bytes_per_step"] == 4 * ENTRIES
    assert told["memory"]["gradients"] == 4 * ENTRIES and told["adapt"] == "lora"
    check_run(weights, told, before, Path("runs/adapted"))


WAYS = {
    "processes": ("hardware.workers=2",),
    "pipeline": ("strategy=pipeline", "strategy.micro_batches=1"),
    "hybrid": ("strategy=hybrid", "strategy.tensor=1", "hardware.workers=2", "strategy.micro_batches=1"),
    "offload": ("strategy=offload", "hardware.workers=1"),
    "zero-1": ("strategy=zero", "strategy.stage=1", "hardware.workers=1"),
    "zero-2": ("strategy=zero", "strategy.stage=2", "hardware.workers=1"),
    "zero-3": ("strategy=zero", "strategy.stage=3", "hardware.workers=1"),
    "fsdp": ("strategy=torch_fsdp", "hardware.workers=1"),
}


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_strategy_leaves_the_base_alone_and_trains_as_one_worker(here, fork_server, way: str) -> None:
    before, _ = trained(*SMALL, "strategy=single", "hardware.workers=1", name="base")
    begins = "weights=runs/base/model.safetensors"
    weights, told = trained(*SMALL, "adapt=lora", begins, *WAYS[way], name="adapted")
    check_run(weights, told, before, Path("runs/adapted"))
    assert told["wire"]["bytes_per_step"] == (told["predicted"]["bytes_per_step"] or told["wire"]["bytes_per_step"])
    batch = f"batch_size={32 if way == 'processes' else 16}"
    alone, _ = trained(*SMALL, "adapt=lora", begins, "strategy=single", "hardware.workers=1", batch, name="alone")
    assert distance(weights, alone) < 1e-6
    if way == "processes":
        assert told["wire"]["bytes_per_step"] == 4 * ENTRIES


@pytest.mark.dist
@pytest.mark.slow
def test_a_resumed_run_is_the_same_bits_and_its_weights_go_on_plain(here, fork_server) -> None:
    two = ("adapt=lora", "hardware.workers=2", "adapt.dropout=0.2")
    whole, _ = trained(*SMALL, *two, name="whole")
    trained(*SMALL, *two, "steps=2", "checkpoint.every_steps=2", name="half")
    assert identical(trained("steps=4", resume="half")[0], whole)
    still = ("steps=1", "optimizer.lr=1e-30")
    plain, _ = trained(*SMALL, *still, "weights=runs/whole/model.safetensors", name="plain")
    assert identical(plain, whole)
    step = "weights=runs/half/checkpoints/step-00000004"  # has the factors, too
    again, _ = trained(*SMALL, *two, *still, step, name="again")
    assert distance(again, whole) < 1e-6


BEGUN = {
    "pipeline": ("strategy=pipeline", "hardware.workers=2"),
    "fsdp": ("strategy=torch_fsdp", "hardware.workers=2"),
    "zero": ("strategy=zero", "strategy.stage=3", "hardware.workers=2"),
    "offload": ("strategy=offload", "hardware.workers=1"),
}


@pytest.mark.dist
@pytest.mark.parametrize(
    "way",
    [
        ("strategy=data_parallel", "hardware.workers=2"),
        *(pytest.param(BEGUN[w], marks=pytest.mark.slow) for w in BEGUN),
    ],
)
@pytest.mark.budget(2.5)
def test_a_run_begins_with_the_loss_that_torch_gives_its_weights_and_resumes_bit_for_bit(
    here, fork_server, way: tuple[str, ...]
) -> None:
    torch.manual_seed(5)
    theirs = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    names = {"1": "hidden1", "3": "hidden2", "5": "output"}
    base = {names[name[0]] + name[1:]: tensor for name, tensor in theirs.state_dict().items()}
    save_file(base, "base.safetensors")
    how = [*SMALL, *way, "adapt=lora", "adapt.dropout=0.2", "weights=base.safetensors"]
    _, still = trained(*how, "steps=1", "optimizer.lr=1e-30", name="still")
    _, test = Digits(limit=200).load()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(theirs(test.inputs), test.targets)
    assert still["loss"] == pytest.approx(loss.item(), rel=1e-6)
    whole, _ = trained(*how, name="whole")
    trained(*how, "steps=2", "checkpoint.every_steps=2", name="half")
    assert identical(trained("steps=4", resume="half")[0], whole)
    assert all(torch.equal(whole[name], base[name]) for name in base if name.endswith("bias"))
    assert not torch.equal(whole["output.weight"], base["output.weight"])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("peft") is None, reason="needs peft (pip install peft)")
def test_peft_loads_what_was_saved_and_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from peft import PeftModel  # pyright: ignore[reportMissingImports]

        from paceline.engine.base.checkpoint import export_apart

        lora = LoRA(rank=2, alpha=3.0, modules=["0"])
        model = grown(lora)
        export_apart(tmp_path / "adapter", lora.apart(state_of(model)))
        theirs = PeftModel.from_pretrained(copy.deepcopy(base()), tmp_path / "adapter")
        x = torch.randn(7, 6, dtype=torch.float64)
        ours = model(x)
        assert not torch.allclose(ours, base()(x))
        torch.testing.assert_close(theirs(x), ours, rtol=1e-6, atol=1e-6)
