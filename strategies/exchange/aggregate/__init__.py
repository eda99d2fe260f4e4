"""How the gradients or weights of several workers become one: one file a rule. See base.py."""

from .base import Aggregator
from .mean import Mean
from .median import Median

__all__ = ["Aggregator", "Mean", "Median"]
