"""Vision transformers against torch's own encoder, the published size, and how they learn."""

import pytest
import torch
from torch import Tensor, nn
from training import trained

from paceline.tasks.base import DataSpec
from paceline.tasks.data.digits import Digits
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.models.vit import ViT

PHOTOS = DataSpec((3, 224, 224), torch.float32, (), 1000, None, None)
SMALL = DataSpec((2, 4, 6), torch.float32, (), 5, None, None)


def test_vit_base_has_its_parameters() -> None:
    """86,567,656: torchvision's vit_b_16, of the paper's table 1."""
    with torch.device("meta"):
        model = ViT(PHOTOS, patch=16, width=768, n_layer=12, n_head=12)
    w, layers = 768, 12
    stated = (
        (3 * 16**2 + 1) * w + w + (224**2 // 16**2 + 1) * w + layers * (12 * w**2 + 13 * w) + 2 * w + (w + 1) * 1000
    )
    assert sum(p.numel() for p in model.parameters()) == stated == 86_567_656


def in_plain_torch(model: ViT, x: Tensor, patch: int, n_head: int) -> Tensor:
    """Patches by slicing, blocks by torch's encoder, whose rows are all queries, then all keys, then all values."""
    weights = model.state_dict()
    pieces = [
        x[:, :, i : i + patch, j : j + patch].flatten(1)
        for i in range(0, x.shape[2], patch)
        for j in range(0, x.shape[3], patch)
    ]
    matrix = weights["patches.pixels.weight"].flatten(1)
    tokens = [piece @ matrix.T + weights["patches.pixels.bias"] for piece in pieces]
    tokens = torch.stack([weights["patches.class_token"].expand_as(tokens[0]), *tokens], dim=1)
    tokens = tokens + weights["patches.position"]
    width = tokens.shape[-1]
    number = 1
    while f"block{number}.norm1.weight" in weights:
        layer = nn.TransformerEncoderLayer(
            width, n_head, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        ).double()
        of = {name.partition(".")[2]: t for name, t in weights.items() if name.startswith(f"block{number}.")}
        by_head = {kind: of[f"attention.qkv.{kind}"].unflatten(0, (n_head, 3, -1)) for kind in ("weight", "bias")}
        layer.load_state_dict(
            {
                "self_attn.in_proj_weight": by_head["weight"].transpose(0, 1).flatten(0, 2),
                "self_attn.in_proj_bias": by_head["bias"].transpose(0, 1).flatten(),
                "self_attn.out_proj.weight": of["attention.project.weight"],
                "self_attn.out_proj.bias": of["attention.project.bias"],
                "linear1.weight": of["mlp.expand.weight"],
                "linear1.bias": of["mlp.expand.bias"],
                "linear2.weight": of["mlp.project.weight"],
                "linear2.bias": of["mlp.project.bias"],
                **{name: tensor for name, tensor in of.items() if name.startswith("norm")},
            }
        )
        tokens, number = layer(tokens), number + 1
    last = torch.nn.functional.layer_norm(tokens[:, 0], (width,), weights["norm.weight"], weights["norm.bias"])
    return last @ weights["head.weight"].T + weights["head.bias"]


def test_it_is_torchs_encoder_over_patches() -> None:
    torch.manual_seed(0)
    model = ViT(SMALL, patch=2, width=8, n_layer=2, n_head=2).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(3, 2, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(model(x), in_plain_torch(model, x, 2, 2), rtol=1e-10, atol=1e-10)


def test_a_few_steps_lower_the_loss() -> None:
    torch.manual_seed(0)
    losses = trained(ViT(Digits().spec, width=32, n_layer=1), steps=50, batch=32, lr=1e-2)
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])


@pytest.mark.slow
def test_digits_are_told_apart() -> None:
    torch.manual_seed(0)
    model = ViT(Digits().spec)
    trained(model, steps=300, batch=64, lr=2e-3)
    assert evaluate(CrossEntropy(), model, Digits().load()[1]).score > 0.93
