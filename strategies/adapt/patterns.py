"""Layers that are chosen by their names."""

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(name: str, pattern: str) -> bool:
    """Says whether the whole name, or its end after a dot, matches the pattern; * stands for anything."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def shown(names: Iterable[str], most: int = 12) -> list[str]:
    """Returns the names for an error, all or the first and last of them."""
    every = list(names)
    return every if len(every) <= most else [*every[: most - 2], "...", every[-1]]
