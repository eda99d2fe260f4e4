"""What is learnt: one file a loss. See base.py for what a task must say of itself."""

from .base import Task
from .binary import BinaryCrossEntropy
from .cross_entropy import CrossEntropy
from .hinge import Hinge
from .huber import Huber
from .reconstruction import Reconstruction
from .squared import Squared

__all__ = ["BinaryCrossEntropy", "CrossEntropy", "Hinge", "Huber", "Reconstruction", "Squared", "Task"]
