"""A transformer's operations and kernels: Narayanan's formula, torch's counter, and ours of products one by one."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from paceline.cost.transformer import Transformer, products, score_entries, streamed_entries
from paceline.tasks.base import DataSpec
from paceline.tasks.models.gpt import GPT
from paceline.tasks.models.mixture import idle_entries

TEXT = DataSpec((32,), torch.int64, (32,), 80, None, None)
GPT_3 = Transformer(layers=96, width=12288, heads=96, context=2048, vocabulary=51200)


@pytest.mark.parametrize("of", [GPT_3, Transformer(24, 2048, 16, 1024, 50304), Transformer(1, 64, 4, 16, 100)])
@pytest.mark.parametrize(("recomputed", "times", "vocabulary"), [(True, 96, 16), (False, 72, 12)])
def test_flops_are_those_of_narayanan_2021(of: Transformer, recomputed: bool, times: int, vocabulary: int) -> None:
    s, layers, h = of.context, of.layers, of.width
    formula = times * 8 * s * layers * h**2 * (1 + s / (6 * h) + of.vocabulary / (vocabulary * layers * h))
    assert of.pass_flops(8, recomputed) == pytest.approx(formula, rel=1e-12)


@pytest.mark.parametrize(
    ("kv_heads", "inner", "gated", "experts"),
    [
        (None, None, False, {}),
        (2, None, False, {}),
        (1, 96, False, {}),
        (4, None, True, {}),
        (2, 88, True, {}),
        (2, 24, True, {"experts": 8, "active": 3}),
        (4, 24, False, {"experts": 4}),
    ],
)
def test_flops_are_those_that_torch_counts_in_a_gpt(
    kv_heads: int | None, inner: int | None, gated: bool, experts: dict[str, Any]
) -> None:
    of = Transformer(2, 64, 4, context=32, vocabulary=80, kv_heads=kv_heads, inner=inner, gated=gated, **experts)
    with torch.device("meta"):
        model = GPT(TEXT, n_layer=2, width=64, n_kv_head=kv_heads, ffn_width=inner, gated=gated, **experts)
        tokens = torch.zeros(3, 32, dtype=torch.int64)
    with FlopCounterMode(display=False) as forward:
        out = model(tokens)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    # the GPT joins the answers of a token's experts by a product of k numbers and k rows, which closed forms leave out
    joined = of.layers * 2 * tokens.numel() * of.active * of.width if of.experts else 0
    counted = sum(of.forward_flops(3)) + joined
    assert forward.get_total_flops() == counted
    # torch counts what its fused attention computes twice in backward: its scores once more
    scores = of.layers * 2 * 3 * of.context**2 * of.width
    assert backward.get_total_flops() - 2 * counted in (0, scores)


def test_entries_are_those_of_a_gpt() -> None:
    model = GPT(TEXT, n_layer=2, n_head=4, width=64, tied=True)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert Transformer(2, 64, 4, 32, 80).entries() == matrices
    llama = GPT(TEXT, n_layer=2, n_head=4, n_kv_head=2, width=64, ffn_width=88, gated=True, rotary=1e4, tied=True)
    shape = Transformer(2, 64, 4, 32, 80, kv_heads=2, inner=88, gated=True, positions=False)
    assert shape.entries() == sum(p.numel() for p in llama.parameters() if p.dim() > 1)
    mixed = GPT(TEXT, n_layer=2, n_head=4, width=64, tied=True, experts=4, active=2)
    shape = Transformer(2, 64, 4, 32, 80, experts=4, active=2)
    assert shape.entries() == (matrices := sum(p.numel() for p in mixed.parameters() if p.dim() > 1))
    assert shape.active_entries() == matrices - idle_entries(mixed)
    untied = Transformer(2, 64, 4, 32, 80, tied=False)
    assert untied.entries() - Transformer(2, 64, 4, 32, 80).entries() == 80 * 64


def test_gpt_3_has_175_billion_entries_and_llama_2_7b_6_7() -> None:
    llama = Transformer(32, 4096, 32, 4096, 32000, inner=11008, gated=True, tied=False, positions=False)
    assert GPT_3.entries() / 1e9 == pytest.approx(174.6, abs=0.1)
    assert llama.entries() / 1e9 == pytest.approx(6.74, abs=0.01)


MIXTURE = Transformer(2, 64, 4, 32, 80, kv_heads=2, inner=48, gated=True, head_width=32, experts=16, active=3, shared=1)


@pytest.mark.parametrize("of", [GPT_3, Transformer(2, 64, 4, 32, 80, kv_heads=2, inner=176, gated=True), MIXTURE])
@pytest.mark.parametrize(("tensor", "experts"), [(1, 1), (2, 1), (4, 1), (1, 8), (2, 8), (4, 16)])
def test_products_of_all_devices_are_the_layers_flops(of: Transformer, tensor: int, experts: int) -> None:
    layer = of.forward_flops(4)[0] / of.layers
    found = products(of, 4, tensor, experts=experts)
    assert tensor * sum(each.flops for each in found) == pytest.approx(layer, rel=1e-12)


@pytest.mark.parametrize(
    ("of", "billions", "active"),
    [
        # Mixtral 8x7B: 46.7 and 12.9 billion (Jiang et al. 2024, arXiv 2401.04088)
        (Transformer(32, 4096, 32, 1, 32000, 8, 14336, True, False, False, experts=8, active=2), 46.7, 12.9),
        # Qwen3-30B-A3B: 30.5 and 3.3, Qwen3-235B-A22B: 235 and 22 (Qwen team 2025, arXiv 2505.09388)
        (
            Transformer(48, 2048, 32, 1, 151936, 4, 768, True, False, False, head_width=128, experts=128, active=8),
            30.5,
            3.35,
        ),
        (
            Transformer(94, 4096, 64, 1, 151936, 4, 1536, True, False, False, head_width=128, experts=128, active=8),
            235.1,
            22.2,
        ),
    ],
)
def test_total_and_active_entries_are_those_that_are_published(of: Transformer, billions: float, active: float) -> None:
    assert of.entries() / 1e9 == pytest.approx(billions, abs=0.05)
    assert of.active_entries() / 1e9 == pytest.approx(active, abs=0.05)


def test_flops_of_a_mixture_are_those_of_a_plain_loop_over_its_experts() -> None:
    """Builds one layer's router and experts, each of which computes as many tokens."""
    of, tokens = replace(MIXTURE, layers=1, shared=0), 32
    x = torch.empty(tokens, 64, device="meta")
    router = torch.empty(16, 64, device="meta")
    up, down = torch.empty(2 * 48, 64, device="meta"), torch.empty(64, 48, device="meta")
    with FlopCounterMode(display=False) as counter:
        _ = x @ router.T
        for _ in range(of.experts):
            rows = x[: tokens * of.active // of.experts]
            gate, unit = (rows @ up.T).chunk(2, -1)
            _ = (gate.sigmoid() * gate * unit) @ down.T
    dense = replace(of, experts=0, inner=1)
    without = dense.forward_flops(1)[0] - 2 * tokens * 3 * 64
    assert of.forward_flops(1)[0] - without == counter.get_total_flops()


def test_a_layer_of_one_expert_is_a_plain_one_with_a_router() -> None:
    plain = replace(MIXTURE, experts=0)
    one = replace(MIXTURE, experts=1, active=1, shared=0)
    assert one.entries() - plain.entries() == MIXTURE.layers * MIXTURE.width
    assert streamed_entries(one, 2) - streamed_entries(plain, 2) == 4 * 2 * 32 * 64


def test_attention_in_one_kernel_leaves_out_what_a_causal_mask_hides() -> None:
    whole = [each.flops for each in products(GPT_3, 1) if each.of_scores]
    fused = [each.flops for each in products(GPT_3, 1, fused=True) if each.of_scores]
    assert sum(fused) == sum(whole) / 2
    both_ways = Transformer(96, 12288, 96, 2048, 51200, causal=False)
    assert [each.flops for each in products(both_ways, 1, fused=True) if each.of_scores] == whole


def test_what_is_cut_over_devices_is_streamed_once_in_all() -> None:
    whole = 2 * GPT_3.context * GPT_3.width * 10
    cut = [streamed_entries(GPT_3, 2, tensor) - whole for tensor in (1, 8)]
    assert cut[0] == pytest.approx(8 * cut[1])
    assert score_entries(GPT_3, 2) == 8 * score_entries(GPT_3, 2, 8) == 4 * 2 * 96 * 2048**2


@pytest.mark.parametrize("fused", [True, False])
def test_texts_that_fill_a_sample_have_scores_within_themselves(fused: bool) -> None:
    packed = replace(GPT_3, text=128)
    whole, within = (sum(each.flops for each in products(of, 3, 2, fused) if each.of_scores) for of in (GPT_3, packed))
    assert within == pytest.approx(whole * 128 / 2048)
    assert score_entries(packed, 3) == score_entries(GPT_3, 3) * 128 / 2048
    layers = [of.forward_flops(3)[0] for of in (GPT_3, packed)]
    assert layers[0] - layers[1] == pytest.approx(GPT_3.layers * 4 * 3 * 2048 * (2048 - 128) * GPT_3.width)
