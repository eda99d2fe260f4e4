"""How workers train one model together: one file an algorithm."""

from .base import Batch, Cost, State, Strategy, Sync, Trial, World
from .errors import LayoutError

__all__ = ["Batch", "Cost", "LayoutError", "State", "Strategy", "Sync", "Trial", "World"]
