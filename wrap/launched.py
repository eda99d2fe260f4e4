"""Puts aside what a launcher told this process, from libraries that would start process groups of their own by it.

Accelerate and Lightning look for LOCAL_RANK and WORLD_SIZE, and would have torch.distributed exchange gradients beside
the sync mode. They look as the script begins. paceline looks in `wrap`, and finds the variables there again.
"""

import os

from ..engine.base.started import TOLD

_aside: dict[str, str] = {}


def put_aside() -> None:
    _aside.update({name: os.environ.pop(name) for name in TOLD if name in os.environ})


def put_back() -> None:
    os.environ.update(_aside)
    _aside.clear()


def told(name: str, default: str) -> str:
    """Returns what the launcher said, put aside or not."""
    return _aside.get(name) or os.environ.get(name) or default
