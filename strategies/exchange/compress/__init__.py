"""What travels in place of a vector: one file a rule. See base.py for what a rule must say of itself."""

from .base import Compressor, UnreadableError
from .cast import BFloat16
from .none import Dense
from .topk import TopK

__all__ = ["BFloat16", "Compressor", "Dense", "TopK", "UnreadableError"]
