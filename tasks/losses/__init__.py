"""The losses, one file each. See base.py for the facts that a task must declare."""

from .base import Task
from .binary import BinaryCrossEntropy
from .cross_entropy import CrossEntropy
from .hinge import Hinge
from .huber import Huber
from .reconstruction import Reconstruction
from .squared import Squared
from .squared_hinge import SquaredHinge

__all__ = ["BinaryCrossEntropy", "CrossEntropy", "Hinge", "Huber", "Reconstruction", "Squared", "SquaredHinge", "Task"]
