"""Rules for gradients that are too large, one file each. See strategies/core/clip.py."""

from ...strategies.core.clip import Clip, Counted, Shared
from .none import Unclipped
from .norm import ByNorm
from .value import ByValue

__all__ = ["ByNorm", "ByValue", "Clip", "Counted", "Shared", "Unclipped"]
