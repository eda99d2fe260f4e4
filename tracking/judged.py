"""The metric by which a sweep is evaluated, as its sweep.yaml names it."""

from collections.abc import Iterable, Sequence

from .columns import known
from .compare import sort
from .files import UnusableFileError, parse_yaml, read_text
from .run_data import SWEEP_FILE, RunData
from .selection import larger_first
from .summaries import Row


def metric_of(runs: Iterable[RunData]) -> str | None:
    """The metric of the sweeps that all these runs are of; None where one is of no sweep, or the sweeps differ."""
    metrics = {goal and goal[0] for goal in _goals(runs)}
    return metrics.pop() if len(metrics) == 1 else None


def _goals(runs: Iterable[RunData]) -> set[tuple[str, bool] | None]:
    """Returns the metric of each sweep, and whether larger is better; None for runs of no sweep."""
    goals: set[tuple[str, bool] | None] = set()
    for directory in {run.path.parent if run.swept and run.path else None for run in runs}:
        try:
            metric = parse_yaml(read_text(directory / SWEEP_FILE))["metric"] if directory else {}
            goals.add((str(metric["name"]), metric.get("goal") == "maximize"))
        except (OSError, UnusableFileError, KeyError, TypeError):  # a damaged one is no reason not to compare its runs
            goals.add(None)
    return goals


def own_directions(runs: Sequence[RunData]) -> dict[str, bool]:
    """Returns for metrics without a column whether larger is better: by the task, or else by the goal of a sweep."""
    return dict(sorted(filter(None, _goals(runs)))) | larger_first(run.summary for run in runs)


def best_first(table: list[Row], metric: str, runs: Sequence[RunData]) -> list[Row]:
    """Sorts the table of the runs by the metric if it has a column of it."""
    column = known(metric)
    key = column.key if column else metric
    return sort(table, key, larger_first=own_directions(runs)) if table and key in table[0] else table
