"""Multinomial logistic regression: the convex baseline."""

from collections import OrderedDict
from math import prod

from torch import nn

from ..base import DataSpec
from .checks import need_labels, need_numbers


class LogisticRegression(nn.Sequential):
    """[n, *input_shape] float -> [n, classes]. Raises ConfigError unless inputs are numbers and targets labels."""

    def __init__(self, spec: DataSpec) -> None:
        need_numbers("logistic_regression", spec)
        need_labels("logistic_regression", spec)
        super().__init__(OrderedDict(flatten=nn.Flatten(), output=nn.Linear(prod(spec.input_shape), spec.classes)))
