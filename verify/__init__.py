"""The same model, laid out in every way there is: does each train as one worker does? See docs/verify.md.

>>> from paceline.verify import verify
>>> verify(["model=cnn", "hardware=virtual"], only=["pipeline"]).passed
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .check import Verification, verify

__all__ = ["Verification", "verify"]


def __getattr__(name: str) -> Any:
    """Load on first use: torch is slow to import."""
    if name in __all__:
        from . import check as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
