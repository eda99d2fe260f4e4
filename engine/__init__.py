"""Runs an experiment: compose and validate, plan, launch, train, measure.

>>> from paceline import engine
>>> result = engine.run(["sync=asp", "hardware.workers=2"])
>>> result.accuracy
>>> engine.compare([result, "another-run"], baseline=result)

docs/python.md has the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import ROOT

if TYPE_CHECKING:
    from .api.advising import Advice, advise
    from .api.comparison import Comparison, compare
    from .api.elsewhere import take_up
    from .api.preparing import Prepared, find_fit, plan, prepare
    from .api.results import Result, load
    from .api.session import run

__all__ = [
    "ROOT",
    "Advice",
    "Comparison",
    "Prepared",
    "Result",
    "advise",
    "compare",
    "find_fit",
    "load",
    "plan",
    "prepare",
    "run",
    "take_up",
]

_MODULES = {
    **dict.fromkeys(("Advice", "advise"), "api.advising"),
    "take_up": "api.elsewhere",
    **dict.fromkeys(("Comparison", "compare"), "api.comparison"),
    **dict.fromkeys(("Result", "load"), "api.results"),
    **dict.fromkeys(("Prepared", "find_fit", "plan", "prepare"), "api.preparing"),
    "run": "api.session",
}


def __getattr__(name: str) -> Any:
    """Load on first use: the command line asks for torch only when a run needs it."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
