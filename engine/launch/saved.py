"""Describes the checkpoints from which a run can go on, and the command that resumes it."""

from pathlib import Path

from ...tracking.run_data import resuming
from ...tracking.run_directory import SWEEP_NOTE
from ..fabrics import fabric_of
from ..fabrics.assignment import Assignment


def what_is_saved(assignment: Assignment) -> str:
    """The end of a sentence: what there is to go on from, and the command for it."""
    fabric = fabric_of(assignment.experiment)
    if not fabric.saves:
        return fabric.instead
    saved = last_checkpoint(assignment.run)
    if saved is None:
        return "nothing was saved yet"
    if (assignment.run / SWEEP_NOTE).exists():
        return f"saved: {saved.name}; go on with: {resuming(assignment.run.parent)}"
    allow = "".join(f" --allow-module {module}" for module in assignment.allowed)
    return f"saved: {saved.name}; resume with: paceline train --resume {assignment.run.name}{allow}"


def last_checkpoint(run: Path) -> Path | None:
    from ..base.checkpoint import steps_of

    return next(reversed(steps_of(run / "checkpoints")), None)
