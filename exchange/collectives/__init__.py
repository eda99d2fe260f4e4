"""Algorithms for all-reduce: one file each. See base.py for the properties that an algorithm must state."""

from .auto import Auto
from .base import Collective
from .fabric import Fabric
from .halving_doubling import HalvingDoubling
from .hierarchical import Hierarchical
from .recursive_doubling import RecursiveDoubling
from .ring import Ring
from .shared_memory import SharedMemory
from .star import Star
from .tree import Tree

__all__ = [
    "Auto",
    "Collective",
    "Fabric",
    "HalvingDoubling",
    "Hierarchical",
    "RecursiveDoubling",
    "Ring",
    "SharedMemory",
    "Star",
    "Tree",
]
