"""What is evaluated and saved in place of the weights that are trained: one file an average. See base.py."""

from .base import Average
from .ema import EMA
from .none import Trained
from .swa import SWA

__all__ = ["EMA", "SWA", "Average", "Trained"]
