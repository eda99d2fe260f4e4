"""LoRA's base in 8 and 4 bits: passes are those of the widened weights, and plans state what is held."""

from importlib.util import find_spec

import pytest
import torch
from needs import needs_bitsandbytes
from oracles import identical
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from whole_runs import trained

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.strategies.adapt import LoRA
from paceline.strategies.adapt.narrow import BASES
from paceline.strategies.core.state import state_of

SMALL = ("tracking=none", "data.limit=200", "batch_size=16", "model.hidden=[32,16]", "evaluate.every=1000")
VIRTUAL = (*SMALL, "checkpoint.every=0", "hardware=virtual", "adapt=lora")
GPT = ("model=gpt", "data=text", "adapt=lora", "tracking=none", "strategy=single")
both = pytest.mark.parametrize("base", ["int8", pytest.param("nf4", marks=needs_bitsandbytes)])


def widened(base: str, weight: Tensor) -> Tensor:
    return BASES[base].widened(BASES[base].packed(weight), (weight.shape[0], weight.shape[1]), weight.dtype)


def test_a_row_of_int8_has_its_largest_entry_and_errors_of_half_a_step() -> None:
    weight = torch.cat((torch.randn(5, 30), torch.zeros(1, 30)))
    rounded, steps = widened("int8", weight), weight.abs().amax(1, keepdim=True) / 127
    assert (weight - rounded).abs().le(0.5001 * steps).all()
    assert torch.equal(rounded.abs().amax(1), weight.abs().amax(1)) and not rounded[-1].any()


@both
def test_a_step_is_that_of_lora_over_widened_weights(base: str) -> None:
    torch.manual_seed(2)
    plain = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 64))
    rounded = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 64))
    weights = {k: widened(base, v) if k.endswith("weight") else v for k, v in plain.state_dict().items()}
    rounded.load_state_dict(weights)
    held, oracle = LoRA(rank=2, base=base).apply(plain), LoRA(rank=2).apply(rounded)  # pyright: ignore[reportArgumentType]
    trained_ones: dict[str, Tensor] = {name: each for name, each in held.named_parameters() if each.requires_grad}
    for name, each in trained_ones.items():
        oracle.get_parameter(name).data.copy_(nn.init.normal_(each))
    x = torch.randn(5, 64)
    for model in (held, oracle):
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.01)
        model(x).square().sum().backward()
        optimizer.step()
    assert identical(trained_ones, {name: oracle.get_parameter(name) for name in trained_ones})
    merged = LoRA(rank=2, base=base).merged(state_of(held))  # pyright: ignore[reportArgumentType]
    assert identical(merged, LoRA(rank=2).merged(state_of(oracle)))


@both
def test_a_run_begins_with_rounded_weights_of_a_file_and_exports_float32(here, base: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden1": (32, 64), "hidden2": (16, 32), "output": (10, 16)}
    state = {f"{name}.weight": torch.randn(shape) for name, shape in sizes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in sizes.items()}
    save_file(state, "base.safetensors")
    how = (*VIRTUAL, f"adapt.base={base}", "weights=base.safetensors", "hardware.workers=2", "steps=2")
    weights, told = trained(*how, name="held")
    assert told["memory"]["parameters"] == prepare(how).plan().peak_memory()["parameters"]
    apart = load_file("runs/held/adapter/adapter_model.safetensors")
    for name in sizes:
        a, b = (apart[f"base_model.model.{name}.{each}.weight"] for each in ("lora_A", "lora_B"))
        assert torch.equal(weights[f"{name}.weight"], widened(base, state[f"{name}.weight"]) + 2.0 * (b @ a))
        assert torch.equal(weights[f"{name}.bias"], state[f"{name}.bias"]) and b.any()


@pytest.mark.parametrize("recompute", ["false", "true"])
def test_a_plan_states_the_bytes_of_codes_and_scales_and_no_more_activations(recompute: str) -> None:
    made = (*GPT, "precision=bf16", f"model.recompute={recompute}")
    wide, int8, nf4 = (
        prepare([*made, f"adapt.base={each}"]).plan().parts[0].memory for each in ("fp32", "int8", "nf4")
    )
    entries, rows = 4 * 12 * 128 * 128 + 128 * 256, 4 * (384 + 128 + 512 + 128) + 256
    assert wide["parameters"] - int8["parameters"] == 4 * entries - (entries + 4 * rows)
    scales = 4 * (entries // 64 // 256) + 4 * 17  # and an offset of each matrix
    assert wide["parameters"] - nf4["parameters"] == 4 * entries - (entries // 2 + entries // 64 + scales)
    assert max(int8["activations"], nf4["activations"]) <= wide["activations"]


def test_strategies_that_round_or_cut_weights_are_refused() -> None:
    for strategy in ("zero", "pipeline"):
        with pytest.raises(ConfigError, match=rf"adapt.base=int8: .* strategy={strategy} does not hold. Choose"):
            prepare([*GPT, "adapt.base=int8", f"strategy={strategy}", "hardware.workers=2"]).plan()


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_a_run_in_4_bits_without_bitsandbytes_names_what_to_install() -> None:
    with pytest.raises(
        ConfigError, match=r"bitsandbytes.*is not installed: pip install 'paceline\[quantized\]'"
    ) as caught:
        trained(*VIRTUAL, "adapt.base=nf4", "steps=1")
    assert caught.value.exit_code == 3
