"""Layers that are chosen by their names."""

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(name: str, pattern: str) -> bool:
    """By the whole name, or by what it ends in after a dot; * stands for anything."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def shown(names: Iterable[str], most: int = 12) -> list[str]:
    """For an error."""
    every = list(names)
    return every if len(every) <= most else [*every[: most - 2], "...", every[-1]]
