"""Algorithms with which workers train one model together, one file each."""

from ..conf.errors import ConfigError
from ..cost.transfer import Transfer
from .core.batch import Batch
from .core.cost import Cost, Transfers, World
from .core.state import State
from .core.strategy import Strategy
from .core.sync import Sync
from .core.trial import Trial

LayoutError = ConfigError  # its former name

__all__ = [
    "Batch",
    "ConfigError",
    "Cost",
    "LayoutError",
    "State",
    "Strategy",
    "Sync",
    "Transfer",
    "Transfers",
    "Trial",
    "World",
]
