"""The metric by which a sweep is evaluated, as its sweep.yaml names it."""

from collections.abc import Iterable

from .columns import known
from .compare import sort
from .files import UnusableFileError, parse_yaml, read_text
from .run_data import SWEEP_FILE, RunData
from .summaries import Row


def metric_of(runs: Iterable[RunData]) -> str | None:
    """The metric of the sweeps that all these runs are of; None where one is of no sweep, or the sweeps differ."""
    metrics: set[str | None] = set()
    for directory in {run.path.parent if run.swept and run.path else None for run in runs}:
        try:
            plain = parse_yaml(read_text(directory / SWEEP_FILE)) if directory else {}
            metrics.add(str(plain["metric"]["name"]))
        except (OSError, UnusableFileError, KeyError, TypeError):  # a damaged one is no reason not to compare its runs
            metrics.add(None)
    return metrics.pop() if len(metrics) == 1 else None


def best_first(table: list[Row], metric: str) -> list[Row]:
    """Sorts the table by the metric if it has a column of it."""
    column = known(metric)
    return sort(table, column.key) if column is not None and table and column.key in table[0] else table
