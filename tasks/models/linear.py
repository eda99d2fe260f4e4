"""A linear model: with task=squared linear regression, with task=hinge or squared_hinge a support vector
machine.
"""

from collections import OrderedDict
from math import prod

from torch import nn

from ..base import DataSpec
from .checks import need_numbers


class Linear(nn.Sequential):
    """[n, *input_shape] float -> [n, outputs], W x + b. Raises ConfigError for data that are not numbers."""

    def __init__(self, spec: DataSpec) -> None:
        need_numbers("linear", spec)
        super().__init__(OrderedDict(flatten=nn.Flatten(), output=nn.Linear(prod(spec.input_shape), spec.outputs)))
