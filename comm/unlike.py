"""Who of some workers did otherwise than most."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def odd(told: Mapping[int, T]) -> tuple[T, dict[T, list[int]]]:
    """What most told, or the first where no more are alike; and who told each. `told`: by worker, of one at least."""
    who: dict[T, list[int]] = {}
    for worker, its in told.items():
        who.setdefault(its, []).append(worker)
    return max(who, key=lambda its: len(who[its])), who


def workers(who: list[int], verb: str) -> str:
    """worker 2 sums; workers 0, 1 sum"""
    return f"worker {who[0]} {verb}s" if len(who) == 1 else f"workers {', '.join(map(str, who))} {verb}"
