"""Lets Python find the user's own modules where the user is."""

import sys
from collections.abc import Sequence
from pathlib import Path


def find_modules(allowed: Sequence[str]) -> None:
    """Adds the current folder to those that modules are imported from, if there are `allowed` modules."""
    if allowed and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
