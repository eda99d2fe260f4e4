"""A residual network for small images, and one of 18 layers with the groups of the large ones.

Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2015 (arXiv 1512.03385). A block computes

    y = relu(F(x) + shortcut(x)),    F = norm(conv(relu(norm(conv(x))))), 3 x 3 convolutions.

Depth 6n + 2 (section 4.2): one convolution, then three groups of n blocks with w, 2w and 4w maps (w = 16), whose
shortcuts are the paper's option A: the input itself, every second row and column of it where maps are halved, and zeros
for maps that are new. Depth 18 (table 1): four groups of two blocks with w to 8w maps (w = 64), whose shortcuts are
option B: a 1 x 1 convolution where the shape changes. Deviates: its first convolution is 3 x 3 without a pooling after
it, since images are small.

`norm=batch` normalises over the samples of a worker's batch, or of a micro-batch, and its evaluation takes the running
statistics of replica 0. `norm=group` (Wu, He, "Group Normalization", 2018, arXiv 1803.08494) is a sample's own affair.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Literal

import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor, nn

from ...conf.errors import ConfigError
from ..base import DataSpec
from .checks import need_divisor, need_image

Norm = Callable[[int], nn.Module]  # maps -> layer
BASIC = 18  # the depth with four groups of two blocks


class Padded(nn.Module):
    """Option A: [n, c, h, w] -> [n, maps, ceil(h / stride), ceil(w / stride)], without a parameter.

    `row_window`: the kernel and the stride of the rows that it reads, for who has some of them alone.
    """

    def __init__(self, new_maps: int, stride: int) -> None:
        super().__init__()
        self.new_maps, self.stride = new_maps, stride
        self.row_window = 1, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_maps))


class ResidualBlock(nn.Module):
    """relu(F(x) + shortcut(x)), [n, maps_in, h, w] -> [n, maps, ceil(h / stride), ceil(w / stride)]."""

    def __init__(self, maps_in: int, maps: int, stride: int, norm: Norm, projects: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(maps_in, maps, 3, stride, padding=1, bias=False)
        self.norm1 = norm(maps)
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        self.norm2 = norm(maps)
        self.shortcut = nn.Identity()
        if maps_in != maps and projects:
            projection = nn.Conv2d(maps_in, maps, 1, stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=projection, norm=norm(maps)))
        elif maps_in != maps:
            self.shortcut = Padded(maps - maps_in, stride)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(residual + self.shortcut(x))


class ResNet(nn.Sequential):
    """[n, channels, height, width] float -> [n, outputs].

    `depth`: layers with weights, 6n + 2 or 18. `width`: maps of the first group; None is the paper's, 16, or 64 for
    depth 18. `groups`: of maps, with norm=group.

    Raises ConfigError for data that are not images, for another depth, for groups that do not divide the width, and
    with norm=batch for images of which the last group leaves a single pixel: with one sample there is no variance then.
    """

    depth_knob = "depth"  # more of it makes more layers

    def __init__(
        self,
        spec: DataSpec,
        depth: Annotated[int, Ge(1), Le(10_000)] = 20,
        width: Annotated[int, Ge(1), Le(2**20)] | None = None,
        norm: Literal["batch", "group"] = "batch",
        groups: Annotated[int, Ge(1)] = 8,
    ) -> None:
        need_image("resnet", spec, smallest=1)
        n = (depth - 2) // 6
        if depth != BASIC and (depth % 6 != 2 or n < 1):
            raise ConfigError(f"model.depth={depth} is neither 6n + 2 nor {BASIC}. Choose {_nearest(depth)}.")
        blocks = [2] * 4 if depth == BASIC else [n] * 3
        width = (64 if depth == BASIC else 16) if width is None else width
        if norm == "group":
            need_divisor("groups", groups, width, f"model.width={width}")
        shrinks = 2 ** (len(blocks) - 1)  # a side, in all
        if norm == "batch" and max(spec.input_shape[1:]) <= shrinks:
            raise ConfigError(
                f"model.norm=batch with model.depth={depth} needs a side of more than {shrinks} pixels; "
                f"a sample of these data has the shape {list(spec.input_shape)}. Choose model.norm=group."
            )

        def normalised(maps: int) -> nn.Module:
            return nn.BatchNorm2d(maps) if norm == "batch" else nn.GroupNorm(groups, maps)

        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv=nn.Conv2d(spec.input_shape[0], width, 3, padding=1, bias=False), norm=normalised(width), relu=nn.ReLU()
        )
        maps_in = width
        for group, count in enumerate(blocks):
            for number in range(count):
                maps, stride = width * 2**group, 2 if group > 0 and number == 0 else 1
                block = ResidualBlock(maps_in, maps, stride, normalised, projects=depth == BASIC)
                layers[f"group{group + 1}_block{number + 1}"] = block
                maps_in = maps
        layers["pool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["output"] = nn.Linear(maps_in, spec.outputs)
        super().__init__(layers)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):  # He et al. 2015, arXiv 1502.01852, as the paper says
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")


def _nearest(depth: int) -> str:
    taken = [n for n in range(8, max(depth, 8) + 7) if n % 6 == 2 or n == BASIC]
    below, above = [n for n in taken if n < depth], [n for n in taken if n > depth]
    return " or ".join(map(str, [*below[-1:], *above[:1]]))
