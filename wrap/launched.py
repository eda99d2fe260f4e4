"""Puts aside what a launcher told this process, from libraries that would start process groups of their own by it.

Accelerate and Lightning look for LOCAL_RANK and WORLD_SIZE, and would have torch.distributed exchange gradients beside
the sync mode. They look as the script begins. paceline looks in `wrap`, and finds the variables there again.
"""

import os
from math import ceil, inf
from typing import Any

import torch

from ..conf.errors import ConfigError
from ..engine.base.started import TOLD
from .refusals import say_no_traceback

_aside: dict[str, str] = {}


def put_aside() -> None:
    """Also lets refusals before `wrap` end the script as those of `wrap` do."""
    say_no_traceback(put_back)  # a worker that knows of others waits before it speaks
    _aside.update({name: os.environ.pop(name) for name in TOLD if name in os.environ})


def put_back() -> None:
    os.environ.update(_aside)
    _aside.clear()


def check_device(device: torch.device, choose: str) -> None:
    """Raises `ConfigError` for several workers on GPUs: to these libraries each is alone, and takes the first GPU."""
    if device.type != "cpu" and int(told("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"wrap: device {device}: this trainer runs several workers on CPUs alone. Choose {choose}, or a loop of "
            "your own."
        )


def planned(batches: int, accumulate: int, passes: float, most: float = inf) -> tuple[int, int | None]:
    """Returns the passes and the steps of a trainer, as `wrap` takes them.

    Args:
        batches: batches of a pass.
        accumulate: batches of a step; the last step of a pass may have fewer.
        passes: passes to make; inf if steps alone bound the training.
        most: the largest number of steps.
    """
    updates = max(ceil(batches / accumulate), 1)
    steps = min(ceil(passes * updates) if passes < inf else inf, most)
    return (1, None) if steps == inf else (max(ceil(steps / updates), 1), int(steps))


def tell_rank(accelerator: Any) -> None:
    """Tells Accelerate which worker this is, so that worker 0 alone prints, logs and writes. To it each is alone."""
    from accelerate import PartialState  # pyright: ignore[reportMissingImports]

    for state in (PartialState(), accelerator.state):
        state.process_index = state.local_process_index = int(told("RANK", "0"))


def told(name: str, default: str) -> str:
    """Returns what the launcher said, put aside or not."""
    return _aside.get(name) or os.environ.get(name) or default
