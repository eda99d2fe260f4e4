"""A small U-Net: a class for each pixel of an image.

Source: Ronneberger, Fischer, Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015 (arXiv
1505.04597), figure 1. A level computes, with two 3 x 3 convolutions as C and D, of maps x

    a = C(x),    y = D([a, up(next level(pool(a)))])

and the lowest level C(x) alone. Level i has w 2^i maps at sides that are halved i times. Deviates: padding keeps the
sides; `up` repeats each pixel and is followed by a 3 x 3 convolution for the paper's 2 x 2 up-convolution;
normalisation behind each convolution; fewer maps and levels.
"""

from collections import OrderedDict
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from ...conf.errors import ConfigError
from ..base import DataSpec
from .checks import need_divisor, need_pixels


class Level(nn.Module):
    """[n, maps_in, h, w] -> [n, maps, h, w]; `below` takes half the sides, and gives `maps_below` maps."""

    def __init__(self, down: nn.Module, below: nn.Module, maps_below: int, maps: int, up: nn.Module) -> None:
        super().__init__()
        self.down, self.pool, self.below = down, nn.MaxPool2d(2), below
        self.repeat, self.narrow = nn.Upsample(scale_factor=2), nn.Conv2d(maps_below, maps, 3, padding=1)
        self.up = up

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        return self.up(torch.cat([a, self.narrow(self.repeat(self.below(self.pool(a))))], dim=1))


class ClassesLast(nn.Module):
    """[n, classes, h, w] -> [n, h, w, classes], which is what losses take."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


class UNet(nn.Sequential):
    """[n, channels, height, width] float -> [n, height, width, classes].

    `width`: maps of the first level. `levels`: of sides. `norm`: of samples of the batch together, or of a sample's
    maps in `groups`.

    Raises ConfigError for data that are not images with a label for each pixel, and for sides that cannot be halved
    `levels` - 1 times.
    """

    def __init__(
        self,
        spec: DataSpec,
        width: Annotated[int, Ge(1), Le(2**16)] = 8,
        levels: Annotated[int, Ge(2), Le(10)] = 3,
        norm: Literal["batch", "group"] = "batch",
        groups: Annotated[int, Ge(1)] = 4,
    ) -> None:
        need_pixels("unet", spec)
        halved = 2 ** (levels - 1)
        if any(side % halved for side in spec.input_shape[1:]):
            raise ConfigError(
                f"model.levels={levels}: sides are halved {levels - 1} times, and a sample of these data is "
                f"{list(spec.input_shape)}. Choose model.levels={_most(spec.input_shape[1:])}."
            )
        if norm == "group":
            need_divisor("groups", groups, width, f"model.width={width}")

        def twice(maps_in: int, maps: int) -> nn.Module:
            layers: OrderedDict[str, nn.Module] = OrderedDict()
            for number, taken in enumerate((maps_in, maps), start=1):
                layers[f"conv{number}"] = nn.Conv2d(taken, maps, 3, padding=1, bias=False)
                layers[f"norm{number}"] = nn.BatchNorm2d(maps) if norm == "batch" else nn.GroupNorm(groups, maps)
                layers[f"relu{number}"] = nn.ReLU()
            return nn.Sequential(layers)

        maps = [width * 2**i for i in range(levels)]
        net = twice(maps[-2], maps[-1])
        for i in reversed(range(levels - 1)):
            maps_in = maps[i - 1] if i else spec.input_shape[0]
            net = Level(twice(maps_in, maps[i]), net, maps[i + 1], maps[i], twice(2 * maps[i], maps[i]))
        super().__init__(OrderedDict(net=net, output=nn.Conv2d(width, spec.outputs, 1), classes_last=ClassesLast()))


def _most(sides: tuple[int, ...]) -> str:
    """The levels that these sides leave."""
    levels = 1
    while all(side % 2**levels == 0 for side in sides):
        levels += 1
    return str(levels) if levels > 1 else "none, or data with even sides"
