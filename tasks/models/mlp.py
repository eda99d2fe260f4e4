"""A multi-layer perceptron."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Annotated

from annotated_types import Ge
from torch import nn

from ..base import DataSpec
from .checks import need_numbers


class MLP(nn.Sequential):
    """[n, *input_shape] float -> [n, outputs], ReLU after each layer of `hidden`.

    Raises ConfigError for data that are not numbers.
    """

    depth_knob = "hidden"  # more of it makes more layers

    def __init__(self, spec: DataSpec, hidden: Sequence[Annotated[int, Ge(1)]] = (256, 128)) -> None:
        need_numbers("mlp", spec)
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        widths = [prod(spec.input_shape), *hidden]
        for number, (width_in, width_out) in enumerate(pairwise(widths), start=1):
            layers[f"hidden{number}"] = nn.Linear(width_in, width_out)
            layers[f"relu{number}"] = nn.ReLU()
        layers["output"] = nn.Linear(widths[-1], spec.outputs)
        super().__init__(layers)
