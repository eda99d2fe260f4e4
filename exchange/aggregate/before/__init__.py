"""What is done to rows before a rule makes one vector of them: one file a way. See base.py."""

from .arc import ARC
from .base import Before, Unchanged
from .bucketing import Bucketing
from .mixing import Mixing

__all__ = ["ARC", "Before", "Bucketing", "Mixing", "Unchanged"]
