"""Finds the workers that did otherwise than most."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def odd(told: Mapping[int, T]) -> tuple[T, dict[T, list[int]]]:
    """Returns the value that most workers told, or the first if no two agree, and the workers by value. `told`: by
    worker, of at least one.
    """
    who: dict[T, list[int]] = {}
    for worker, its in told.items():
        who.setdefault(its, []).append(worker)
    return max(who, key=lambda its: len(who[its])), who


def workers(who: list[int], verb: str) -> str:
    """worker 2 sums; workers 0, 1 sum"""
    return f"worker {who[0]} {verb}s" if len(who) == 1 else f"workers {', '.join(map(str, who))} {verb}"
