"""Reads the results of a trial's run."""

from typing import Any

from ..tracking.compare import COLUMNS, rows
from ..tracking.records import End
from ..tracking.run_directory import RunDirectory
from ..tracking.selection import measured
from ..tracking.values import flat


def measures_of(summary: dict[str, Any]) -> dict[str, float | None]:
    """A run's numbers by their names in the comparison (accuracy, step_ms, throughput) and in W&B's summary
    (step_time/median), and those of callbacks by their own names. None: there is none, as of the time to an accuracy
    that was never reached.
    """
    (row,) = rows([summary])
    columns = {
        name: row[column.key]
        for column in COLUMNS
        if column.is_number and column.key in row
        for name in (column.key, column.short)
        if name
    }
    found = {**flat(summary), **measured(summary), **columns}
    return {
        key: None if value is None or value != value else value
        for key, value in found.items()
        if (value is None and key in columns) or (isinstance(value, int | float) and not isinstance(value, bool))
    }


def as_pruned(run: RunDirectory) -> dict[str, Any]:
    """Returns the summary of a pruned run, with the reason why it ended."""
    end = End("pruned", "given up: not among the best at this many evaluations")
    run.add(end)
    run.close()
    summary = {**(run.read_summary() or {"name": run.name}), "status": end.status, "reason": end.reason}
    run.write_summary(summary)
    return summary
