"""Keeps a run's results: its directory, the mirrors of it (terminal, W&B) and comparison tables.

Nothing here imports torch; W&B and rich are imported by the functions that need them.
"""

from .sinks import sinks_from

__all__ = ["sinks_from"]
