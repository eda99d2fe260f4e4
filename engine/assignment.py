"""What each worker of a run is told."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from .experiment import Experiment


class Predicted(TypedDict):
    """What the plan said, for the summary: payload bytes a worker and step, and the largest worker's bytes by kind."""

    bytes_per_step: float | None  # None: it took the data to know
    memory: dict[str, int]


@dataclass(frozen=True)
class Assignment:
    """`run`: the run directory. `identity`: see stored.py; checkpoints have it.

    `resume`: the checkpoint to go on from. `trace`: the file to write a trace to.
    """

    experiment: Experiment
    run: Path
    allowed: tuple[str, ...]
    identity: str
    predicted: Predicted
    resume: Path | None = None
    trace: Path | None = None
