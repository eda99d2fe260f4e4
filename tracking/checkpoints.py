"""Finds a run's checkpoints by the names of their folders: one that is being written, or removed, has a suffix."""

import re
from pathlib import Path

STEP = re.compile(r"step-(\d{8,18})")


def steps_of(checkpoints: Path) -> list[Path]:
    """The whole checkpoints, oldest first."""
    return sorted((path for path in checkpoints.glob("step-*") if STEP.fullmatch(path.name)), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Returns the step in its folder's name; -1: it is no checkpoint's."""
    found = STEP.fullmatch(checkpoint.name)
    return int(found[1]) if found else -1
