"""Runs an experiment: compose and validate, plan, launch, train, measure.

>>> from paceline import engine
>>> result = engine.run(["sync=asp", "hardware.workers=2"])
>>> result.accuracy
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import Prepared, Result, find_fit, prepare, run

__all__ = ["ROOT", "Prepared", "Result", "find_fit", "prepare", "run"]

ROOT = Path("runs")  # where run directories are made, relative to where the command is given


def __getattr__(name: str) -> Any:
    """Load on first use: the command line asks for torch only when a run needs it."""
    if name in __all__:
        from . import session as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
