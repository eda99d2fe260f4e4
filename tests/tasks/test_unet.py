"""The U-Net and the images of disks that it is tried on."""

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.tasks.base import DataSpec, Split
from paceline.tasks.checks import load_checked
from paceline.tasks.data.diabetes import Diabetes
from paceline.tasks.data.digits import Digits
from paceline.tasks.data.disks import Disks
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.models.unet import UNet


def spec(height: int = 16, width: int = 8, classes: int = 3) -> DataSpec:
    return DataSpec((2, height, width), torch.float32, (height, width), classes)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_each_pixel_is_given_a_score_for_each_class(norm) -> None:
    net = UNet(spec(), width=4, norm=norm)
    outputs = net(torch.randn(5, 2, 16, 8))
    assert outputs.shape == (5, 16, 8, 3)
    assert CrossEntropy().accepts(outputs, spec())


def test_a_level_joins_its_own_maps_with_those_from_below_at_half_the_sides() -> None:
    net = UNet(spec(), width=4, levels=2)
    sides: dict[str, Any] = {}
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(
                lambda _, given, made, name=name: sides.update({name: (given[0].shape, cast(torch.Tensor, made).shape)})
            )
    net(torch.randn(1, 2, 16, 8))
    assert sides["net.below.conv2"] == ((1, 8, 8, 4), (1, 8, 8, 4))
    assert sides["net.narrow"] == ((1, 8, 16, 8), (1, 4, 16, 8))
    assert sides["net.up.conv1"] == ((1, 8, 16, 8), (1, 4, 16, 8))
    # 9 (w_in w_out) a convolution, two numbers a map of each norm, two biases
    convolutions = 9 * (2 * 4 + 4 * 4 + 4 * 8 + 8 * 8 + 8 * 4 + 8 * 4 + 4 * 4) + 4 * 3
    assert sum(each.numel() for each in net.parameters()) == convolutions + 2 * (4 * 4 + 2 * 8) + 4 + 3


def test_a_level_is_that_of_plain_functions() -> None:
    torch.manual_seed(0)
    net = UNet(spec(), width=4, levels=2).double().eval()
    level, x = net.get_submodule("net"), torch.randn(3, 2, 16, 8, dtype=torch.float64)
    narrow = level.get_submodule("narrow")
    assert isinstance(narrow, nn.Conv2d)
    a = level.get_submodule("down")(x)
    below = level.get_submodule("below")(F.max_pool2d(a, 2)).repeat_interleave(2, 2).repeat_interleave(2, 3)
    joined = torch.cat([a, F.conv2d(below, narrow.weight, narrow.bias, padding=1)], dim=1)
    torch.testing.assert_close(level(x), level.get_submodule("up")(joined))


@pytest.mark.parametrize(
    ("data", "knobs", "says"),
    [
        (Digits().spec, {}, r"labels each pixel of an image; .* \[1, 8, 8\] and targets \[\]. Choose data=disks"),
        (Diabetes().spec, {}, "labels each pixel of an image"),
        (spec(12, 8), {"levels": 4}, "halved 3 times, .*. Choose model.levels=3"),
        (spec(), {"norm": "group", "groups": 3}, "model.groups=3 does not divide model.width=8. Choose 2 or 4"),
    ],
)
def test_what_it_cannot_label_is_refused(data, knobs, says) -> None:
    with pytest.raises(ConfigError, match=says):
        UNet(data, **knobs)


def test_disks_are_what_their_spec_says_and_the_same_for_a_seed() -> None:
    [train, test], [again, _] = (load_checked("disks", Disks(side=32, samples=8, seed=3)) for _ in range(2))
    assert (len(train), len(test)) == (8, 2) and isinstance(train, Split) and isinstance(again, Split)
    assert torch.equal(lone(train.samples), lone(again.samples)) and torch.equal(train.targets, again.targets)
    assert not torch.equal(lone(train.samples), lone(Disks(side=32, samples=8, seed=4).load()[0].samples))


def test_a_label_says_whether_a_pixel_is_in_the_disk() -> None:
    """Without noise the image is its labels; those of each row of a disk follow one another."""
    train, _ = Disks(side=40, samples=8, noise=0.0).load()
    assert torch.equal(lone(train.samples)[:, 0], train.targets.float())
    changes = train.targets.diff(dim=2).abs().sum(dim=2)
    assert int(changes.max()) == 2
    width = train.targets.sum(dim=2).amax(dim=1)  # at least a radius, were half of the disk outside; at most two
    assert int(width.min()) >= 40 / 8 - 1 and 2 * 40 / 8 < int(width.max()) <= 2 * 40 * 3 / 8 + 1
    area = train.targets.float().mean(dim=(1, 2))
    assert bool((area > 0).all()) and float(area.max()) <= 3.15 * 0.375**2 + 0.05


def test_a_few_steps_tell_disks_from_noise() -> None:
    torch.manual_seed(0)
    train, test = Disks(side=32, samples=16).load()
    net, task = UNet(Disks(side=32).spec, width=4, levels=2), CrossEntropy()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        task.loss(net(train.inputs), train.targets).backward()
        optimizer.step()
    right = float((net(test.inputs).argmax(dim=-1) == test.targets).float().mean())
    assert right > 0.85 > float((test.targets == 0).float().mean())
