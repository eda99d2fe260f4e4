"""Llama's layers (gated feed-forward, RMSNorm, rotary positions, no biases) against plain torch, and refusals."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.tasks.base import DataSpec
from paceline.tasks.models.gpt import GPT, GatedFeedForward, rotated

TEXT = DataSpec((12,), torch.int64, (12,), 256, None, None)
LAYERS, HEADS, GROUPS, WIDTH, FFN, BASE = 2, 4, 2, 24, 20, 50.0
LLAMA: dict[str, Any] = {
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_kv_head": GROUPS,
    "width": WIDTH,
    "ffn_width": FFN,
    "gated": True,
    "rms_norm": True,
    "rotary": BASE,
    "bias": False,
}


def llama(**knobs: Any) -> GPT:
    torch.manual_seed(0)
    model = GPT(TEXT, **(LLAMA | knobs)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.3)  # norms, too, are no ones
    return model


def in_plain_torch(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Heads one by one, the pairs of rotary positions as complex numbers, the gate as a matrix of its own."""
    head_width, shared = WIDTH // HEADS, HEADS // GROUPS

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain

    def turned(x: Tensor) -> Tensor:
        pairs = torch.complex(*x.chunk(2, -1))
        angles = [[p * BASE ** (-2 * i / head_width) for i in range(head_width // 2)] for p in range(x.shape[1])]
        pairs = pairs * torch.exp(1j * torch.tensor(angles, dtype=torch.float64))
        return torch.cat((pairs.real, pairs.imag), -1)

    x = weights["embedding.token.weight"][tokens]
    later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    for number in range(1, LAYERS + 1):
        own = {name.partition(".")[2]: each for name, each in weights.items() if name.startswith(f"block{number}.")}
        y, mixed = norm(x, own["norm1.weight"]), list[Tensor]()
        for rows in own["attention.qkv.weight"].split((shared + 2) * head_width):
            *queries, key, value = rows.split(head_width)
            for query in queries:
                scores = turned(y @ query.T) @ turned(y @ key.T).transpose(1, 2) / head_width**0.5
                mixed.append(scores.masked_fill(later, float("-inf")).softmax(-1) @ (y @ value.T))
        x = x + torch.cat(mixed, -1) @ own["attention.project.weight"].T
        y = norm(x, own["norm2.weight"])
        gate, up = (y @ own["mlp.expand.weight"][first::2].T for first in (0, 1))
        x = x + (gate * torch.sigmoid(gate) * up) @ own["mlp.project.weight"].T
    return norm(x, weights["norm.weight"]) @ weights["head.weight"].T


@pytest.mark.parametrize("knobs", [{}, {"recompute": True}, {"tied": True}], ids=["", "recompute", "tied"])
def test_outputs_and_gradients_are_those_of_plain_torch(knobs: dict[str, Any]) -> None:
    model, tokens = llama(**knobs), torch.randint(256, (3, 12))
    found = []
    for forward in (model, lambda tokens: in_plain_torch(dict(model.named_parameters(remove_duplicate=False)), tokens)):
        model.zero_grad()
        output = forward(tokens)
        output.square().mean().backward()
        found.append([output, *(each.grad.clone() for each in model.parameters() if each.grad is not None)])
    assert len(found[0]) == len(found[1]) == 1 + len(list(model.parameters()))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)


def test_scores_of_rotated_vectors_depend_on_how_far_places_are_apart() -> None:
    query, key = (torch.randn(8, dtype=torch.float64).expand(1, 9, 1, 8) for _ in range(2))
    scores = (rotated(query, BASE)[0, :, 0] @ rotated(key, BASE)[0, :, 0].T).detach()
    for one, other in pairwise(range(9)):
        torch.testing.assert_close(scores[one, :-1], scores[other, 1:], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(scores[0], scores[1])


def test_rotation_is_computed_in_float32_of_half_precision() -> None:
    x = torch.randn(1, 2049, 1, 8).bfloat16()
    assert torch.equal(rotated(x, BASE), rotated(x.float(), BASE).bfloat16())


@pytest.mark.parametrize("pieces", [2, 5])
def test_even_pieces_of_a_gated_layer_add_up_to_the_whole(pieces: int) -> None:
    torch.manual_seed(0)
    whole = GatedFeedForward(8, 10, dropout=0.0, bias=True).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    total = whole.project.bias.detach().clone()
    for i in range(pieces):
        piece = GatedFeedForward(8, 10 // pieces, dropout=0.0, bias=True).double()
        piece.expand.weight = nn.Parameter(whole.expand.weight.chunk(pieces)[i])
        piece.expand.bias = nn.Parameter(whole.expand.bias.chunk(pieces)[i])
        piece.project.weight = nn.Parameter(whole.project.weight.chunk(pieces, dim=1)[i])
        nn.init.zeros_(piece.project.bias)
        total = total + piece(x)
    torch.testing.assert_close(total, whole(x), rtol=1e-12, atol=1e-12)


def test_each_knob_has_its_parameters_alone() -> None:
    def count(**knobs: Any) -> int:
        return sum(each.numel() for each in GPT(TEXT, n_layer=3, width=32, **knobs).parameters())

    w, plain = 32, count()
    assert count(ffn_width=96) == plain - 3 * (2 * w * 32 + 32)
    assert count(gated=True) == plain + 3 * (4 * w * w + 4 * w)
    assert count(rms_norm=True) == plain - (2 * 3 + 1) * w
    assert count(rotary=1e4) == plain - 12 * w
    assert count(bias=False) == plain - 3 * (3 * w + w + 4 * w + w)


def test_a_smaller_context_than_the_datas_is_refused_with_rotary_positions_too() -> None:
    assert GPT(TEXT, **LLAMA, context=10**9)(torch.zeros(1, 12, dtype=torch.int64)).shape == (1, 12, 256)
    with pytest.raises(ConfigError, match=r"model\.context=11"):
        GPT(TEXT, **LLAMA, context=11)


def test_heads_of_odd_width_do_not_turn() -> None:
    with pytest.raises(
        ConfigError, match=r"model\.rotary=50: heads of width 3 .* Choose another model\.n_head"
    ) as caught:
        llama(n_head=8)
    assert caught.value.exit_code == 2
