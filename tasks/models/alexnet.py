"""A network with AlexNet's eight layers, for small images.

Source: Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks", 2012, section
3.5: five convolutions, of which the first, second and fifth are pooled (3 x 3 every 2 pixels, which overlap), three
linear layers, ReLU throughout, and dropout behind the first two linear layers (section 4.2).
Deviates: since images are small, the first convolution is 5 x 5 at every pixel for 11 x 11 at every fourth, pooling
goes one pixel over the edge, and there are a quarter of the maps; no map is split over two devices; no local response
normalisation; initial weights are those of He et al. 2015 (arXiv 1502.01852), without which eight layers begin slowly.

Parameters, for maps m_1 to m_5 of images of m_0 colours, sides k = 5, 5, 3, 3, 3, h_1 and h_2 hidden units, K outputs:

    sum_i (k_i^2 m_{i-1} + 1) m_i + (m_5 a b + 1) h_1 + (h_1 + 1) h_2 + (h_2 + 1) K

where an image's sides, halved three times and rounded up, are a and b.
"""

from collections import OrderedDict
from typing import Annotated

from annotated_types import Ge, Lt
from torch import nn

from ..base import DataSpec
from .checks import need_image

Count = Annotated[int, Ge(1)]
Probability = Annotated[float, Ge(0), Lt(1)]
SMALLEST = 5  # a side of 4 pixels is a single one before the last pooling
SIDES = (5, 5, 3, 3, 3)  # of the kernels
POOLED = (1, 2, 5)  # the convolutions before a pooling


class AlexNet(nn.Sequential):
    """[n, channels, height, width] float -> [n, outputs], for images of at least 5x5.

    `channels`: maps of the five convolutions; `hidden`: widths of two linear layers; `dropout`: behind each of these.
    Raises ConfigError for data that are not such images.
    """

    depth_knob = "hidden"  # more of it makes more layers

    def __init__(
        self,
        spec: DataSpec,
        channels: tuple[Count, Count, Count, Count, Count] = (24, 64, 96, 96, 64),
        hidden: tuple[Count, Count] = (512, 512),
        dropout: Probability = 0.5,
    ) -> None:
        need_image("alexnet", spec, SMALLEST)
        maps_in, height, width = spec.input_shape
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, (maps, side) in enumerate(zip(channels, SIDES, strict=True), start=1):
            layers[f"conv{number}"] = nn.Conv2d(maps_in, maps, side, padding=side // 2)
            layers[f"relu{number}"] = nn.ReLU()
            if number in POOLED:
                layers[f"pool{number}"] = nn.MaxPool2d(3, stride=2, padding=1)
                height, width = (height + 1) // 2, (width + 1) // 2
            maps_in = maps
        layers["flatten"] = nn.Flatten()
        units_in = maps_in * height * width
        for number, units in enumerate(hidden, start=1):
            layers[f"hidden{number}"] = nn.Linear(units_in, units)
            layers[f"relu{number + 5}"] = nn.ReLU()
            layers[f"dropout{number}"] = nn.Dropout(dropout)
            units_in = units
        layers["output"] = nn.Linear(units_in, spec.outputs)
        super().__init__(layers)
        for layer in self:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
