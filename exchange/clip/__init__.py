"""What is done to a gradient that is too large: one file a rule. See strategies/core/clip.py."""

from ...strategies.core.clip import Clip, Counted, Shared
from .none import Unclipped
from .norm import ByNorm
from .value import ByValue

__all__ = ["ByNorm", "ByValue", "Clip", "Counted", "Shared", "Unclipped"]
