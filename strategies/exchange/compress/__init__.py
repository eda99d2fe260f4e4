"""What travels in place of a vector: one file a rule. See base.py for what a rule must say of itself."""

from .base import Compressor, Slot, Summed, UnreadableError, Vector, vector_of
from .cast import BFloat16
from .none import Dense
from .topk import TopK

__all__ = ["BFloat16", "Compressor", "Dense", "Slot", "Summed", "TopK", "UnreadableError", "Vector", "vector_of"]
