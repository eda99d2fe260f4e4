"""What is learnt: one file a loss. See base.py for what a task must say of itself."""

from .base import Task
from .cross_entropy import CrossEntropy
from .hinge import Hinge
from .squared import Squared

__all__ = ["CrossEntropy", "Hinge", "Squared", "Task"]
