"""Transformations of the rows before a rule aggregates them: one file each. See base.py."""

from .arc import ARC
from .base import Before, Unchanged
from .bucketing import Bucketing
from .mixing import Mixing

__all__ = ["ARC", "Before", "Bucketing", "Mixing", "Unchanged"]
