"""Averages of the weights, evaluated and saved in place of the trained weights: one file each. See base.py."""

from .base import Average
from .ema import EMA
from .none import Trained
from .swa import SWA

__all__ = ["EMA", "SWA", "Average", "Trained"]
