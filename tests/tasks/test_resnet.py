"""Residual networks against plain functions of torch, the paper's table, and how they learn."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import trained

from paceline.tasks.base import DataSpec
from paceline.tasks.data.digits import Digits
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.models.resnet import ResidualBlock, ResNet

CIFAR = DataSpec((3, 32, 32), torch.float32, (), 10, 50_000, 10_000)


def counted(**knobs: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in ResNet(CIFAR, **knobs).parameters())


@pytest.mark.parametrize(("depth", "millions"), [(20, "0.27"), (32, "0.46"), (44, "0.66"), (56, "0.85"), (110, "1.7")])
def test_parameters_are_those_of_the_papers_table_6(depth: int, millions: str) -> None:
    assert f"{counted(depth=depth) / 1e6:.{len(millions) - 2}f}" == millions


def test_parameters_are_counted_layer_by_layer() -> None:
    """Of a group's six convolutions the first has as many inputs as the group before it has outputs."""
    convolutions = 9 * (3 * 16 + 6 * 16**2 + (16 * 32 + 5 * 32**2) + (32 * 64 + 5 * 64**2))
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    assert counted(depth=20) == convolutions + norms + 65 * 10 == 269_722
    # torchvision's ResNet-18 with ten classes, 3 x 3 for 7 x 7 in the first convolution
    assert counted(depth=18) == 11_181_642 - 64 * 3 * (49 - 9)


def test_there_are_as_many_layers_with_weights_as_the_depth_says() -> None:
    for depth in (8, 20, 18):
        layers = [m for name, m in ResNet(CIFAR, depth=depth).named_modules() if "shortcut" not in name]
        assert sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in layers) == depth


def in_plain_torch(block: ResidualBlock, x: Tensor, stride: int, groups: int | None) -> Tensor:
    """The paper's equations (1) and (2), with the weights of `block`."""
    weights = dict(block.named_parameters())

    def normalised(x: Tensor, name: str) -> Tensor:
        n, c, h, w = x.shape
        if groups is None:  # over samples and places, a map at a time
            mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
            unit = (x - mean) / (variance + 1e-5).sqrt()
        else:
            g = x.reshape(n, groups, -1)
            unit = (g - g.mean(2, keepdim=True)) / (g.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
            unit = unit.reshape(n, c, h, w)
        return unit * weights[f"{name}.weight"].reshape(-1, 1, 1) + weights[f"{name}.bias"].reshape(-1, 1, 1)

    def convolved(x: Tensor, name: str, stride: int) -> Tensor:
        weight = weights[f"{name}.weight"]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    y = normalised(convolved(x, "conv1", stride), "norm1").clamp_min(0)
    y = normalised(convolved(y, "conv2", 1), "norm2")
    if "shortcut.conv.weight" in weights:
        x = normalised(convolved(x, "shortcut.conv", stride), "shortcut.norm")
    elif stride > 1:
        zeros = torch.zeros(len(x), y.shape[1] - x.shape[1], *y.shape[2:], dtype=x.dtype)
        x = torch.cat([x[:, :, ::stride, ::stride], zeros], dim=1)
    return (y + x).clamp_min(0)


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize(("maps", "stride", "projects"), [(4, 1, False), (8, 2, False), (8, 2, True)])
def test_a_block_is_that_of_plain_functions(groups: int | None, maps: int, stride: int, projects: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d if groups is None else lambda maps: nn.GroupNorm(groups, maps)
    block = ResidualBlock(4, maps, stride, norm, projects).double()
    for name, parameter in block.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter)
    x = torch.randn(3, 4, 7, 6, dtype=torch.float64)
    y = block(x)
    assert y.shape == (3, maps, -(-7 // stride), -(-6 // stride))
    torch.testing.assert_close(y, in_plain_torch(block, x, stride, groups), rtol=1e-10, atol=1e-12)


def test_a_sample_is_judged_by_itself_whichever_norm() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 9, 9)
    for norm in ("batch", "group"):
        model = ResNet(CIFAR, depth=8, width=4, norm=norm, groups=2)
        model(x)  # running statistics
        model.eval()
        torch.testing.assert_close(model(x), torch.cat([model(sample) for sample in x.split(1)]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_few_steps_lower_the_loss(norm: Any) -> None:
    torch.manual_seed(0)
    losses = trained(ResNet(Digits().spec, depth=8, width=8, norm=norm), steps=20, batch=32, lr=1e-2)
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3])


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [{}, {"norm": "group"}, {"depth": 18, "width": 16, "norm": "group"}], ids=str)
def test_digits_are_told_apart(knobs: dict) -> None:
    torch.manual_seed(0)
    model = ResNet(Digits().spec, **knobs)
    trained(model, steps=150, batch=64, lr=3e-3)
    assert evaluate(CrossEntropy(), model, Digits().load()[1]).score > 0.95
