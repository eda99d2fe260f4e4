"""How workers train one model together: one file an algorithm."""

from .core.batch import Batch
from .core.cost import Cost, World
from .core.errors import LayoutError
from .core.state import State
from .core.strategy import Strategy
from .core.sync import Sync
from .core.trial import Trial

__all__ = ["Batch", "Cost", "LayoutError", "State", "Strategy", "Sync", "Trial", "World"]
