"""The message that tells each worker of a run its work."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...tracking.records import PlanSummary
from ..config.experiment import Experiment


@dataclass(frozen=True)
class Assignment:
    """`run`: the run directory. `identity`: see stored.py; checkpoints have it.

    `resume`: the checkpoint to go on from. `trace`: the file to write a trace to. `samples`: the file to write to what
    workers of a virtual cluster held (watching.py); None: nobody watches. `timetable`: with it, that of
    the strategy's schedule (timetable.py). `probe`: instead of evaluating and saving, its workers write down what
    there is after each step (probe.py). `devices`: CUDA_VISIBLE_DEVICES of its workers; None: as it is.
    """

    experiment: Experiment
    run: Path
    allowed: tuple[str, ...]
    identity: str
    predicted: PlanSummary
    resume: Path | None = None
    trace: Path | None = None
    timetable: dict[str, Any] | None = None
    probe: bool = False
    devices: str | None = None
    samples: Path | None = None
