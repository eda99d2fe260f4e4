"""The model trains as it is.

Equation: all of theta is trained.

Cost: nothing is added.

Use it unless a model is to be made smaller.
"""

from torch import nn

from .base import Adapt


class AsItIs(Adapt):
    """Nothing is done to it."""

    def apply(self, model: nn.Module) -> nn.Module:
        return model
