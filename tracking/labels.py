"""Labels of runs that tell apart runs of one name."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .run_data import RunData

DEEPEST = 64  # directories of a path


def labels(runs: Sequence[RunData]) -> list[str]:
    """Each run's name; of several with one name, its directory's, then SWEEP/RUN or as much of the path as it takes.

    Of a sweep all runs are called alike. What lies in no directory and in no sweep keeps its name.
    """
    found = [str(run.summary.get("name", run.name)) for run in runs]
    for depth in range(DEEPEST):
        twice = {label for label, times in Counter(found).items() if times > 1}
        if not twice:
            break
        sweeps = {_sweep(run) for run, label in zip(runs, found, strict=True) if label in twice and run.swept}
        longer = [_label(run, label, depth) for run, label in zip(runs, found, strict=True)]
        if longer == found and depth > 1:
            break
        found = [
            more if label in twice or (run.swept and depth and _sweep(run) in sweeps) else label
            for run, label, more in zip(runs, found, longer, strict=True)
        ]
    return found


def _label(run: RunData, label: str, depth: int) -> str:
    if depth == 0:
        return run.name
    if run.path is not None:
        return "/".join(part.strip("/") for part in run.path.parts[-depth - 1 :])
    return f"{run.swept.sweep}/{run.name}" if run.swept else label


def _sweep(run: RunData) -> Path | str | None:
    return run.path.parent if run.path is not None else run.swept.sweep if run.swept else None
