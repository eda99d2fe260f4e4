"""A convolutional network shaped like LeNet-5.

Source: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998,
figure 2. Deviates: ReLU for tanh, max for mean pooling, every map connected to every other, and "same" padding,
so that the 8x8 digits fit too.
"""

from collections import OrderedDict
from typing import Annotated

from annotated_types import Ge
from torch import nn

from ...conf.errors import ConfigError
from ..base import DataSpec
from .checks import need_image

Count = Annotated[int, Ge(1)]


class CNN(nn.Sequential):
    """[n, channels, height, width] float -> [n, outputs], for images of at least 4x4.

    `channels`: maps of the two convolutions; `kernel`: their odd side; `hidden`: widths of two linear layers.
    Raises ConfigError for data that are not such images and for an even kernel.
    """

    depth_knob = "hidden"  # more of it makes more layers

    def __init__(
        self,
        spec: DataSpec,
        channels: tuple[Count, Count] = (6, 16),
        kernel: Count = 5,
        hidden: tuple[Count, Count] = (120, 84),
    ) -> None:
        need_image("cnn", spec, smallest=4)
        if kernel % 2 == 0:
            raise ConfigError(f"model.kernel={kernel}: the kernel's side must be odd.")
        colours, height, width = spec.input_shape
        flat = channels[1] * (height // 4) * (width // 4)
        super().__init__(
            OrderedDict(
                conv1=nn.Conv2d(colours, channels[0], kernel, padding=kernel // 2),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(channels[0], channels[1], kernel, padding=kernel // 2),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden1=nn.Linear(flat, hidden[0]),
                relu3=nn.ReLU(),
                hidden2=nn.Linear(hidden[0], hidden[1]),
                relu4=nn.ReLU(),
                output=nn.Linear(hidden[1], spec.outputs),
            )
        )
