"""Runs side by side, for Python: the table that `paceline compare` prints, as an object."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...conf.errors import check_options
from ...tracking import compare as tables
from ...tracking import sources
from ...tracking.errors import RunNameError, TableError
from ...tracking.run_data import RunData
from ...tracking.selection import larger_first
from ...tracking.summaries import Row
from ..base import ROOT
from .results import Result

if TYPE_CHECKING:
    from pandas import DataFrame

    from ...tracking.display import Picture


@dataclass(frozen=True, repr=False)
class Comparison:
    """`rows`: raw values by the keys of tracking/columns.py, units in the names; `columns`: those asked for."""

    rows: list[Row]
    runs: list[RunData]
    columns: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, run: str) -> Row:
        """The row of this name. Raises KeyError."""
        for row in self.rows:
            if row["run"] == run:
                return row
        raise KeyError(f"{run}: there are {', '.join(str(row['run']) for row in self.rows)}")

    def best(self, column: str) -> Row:
        """The row that is best in a column, by its key or short name. Raises TableError."""
        ordered = tables.sort(self.rows, column, larger_first=larger_first(run.summary for run in self.runs))
        if not ordered:
            raise TableError(f"best {column!r}: the table has no rows")
        return ordered[0]

    def frame(self) -> "DataFrame":
        """A row a run, indexed by its name. Raises MissingPackageError."""
        from ...tracking.frames import table

        return table([{key: row[key] for key in self.columns or row} for row in self.rows])

    def curves(self) -> "DataFrame":
        """The curves of all runs, indexed by run and step: see tracking/frames.py. Raises MissingPackageError."""
        from ...tracking.frames import curves_of_all

        return curves_of_all(self.runs)

    def figures(self) -> list[str]:
        """The names of those that `plot` draws of these runs."""
        from ...tracking.display import pictures

        return list(pictures(self.runs))

    def plot(self, what: str = "accuracy") -> "Picture":
        """A figure as SVG: `accuracy`, `memory`, ..., or `x=hardware.workers y=accuracy line=sync`.

        Raises TableError.
        """
        from ...tracking.display import plot

        return plot(self.runs, what)

    def report(self, file: str | Path) -> Path:
        """The page that `paceline compare --html` writes. Raises StorageError."""
        from ...tracking.report import write_report

        write_report(self.runs, Path(file), self.rows, self.columns)
        return Path(file)

    def __repr__(self) -> str:
        return tables.render(self.rows, columns=self.columns).rstrip("\n")

    def _repr_html_(self) -> str:
        from ...tracking.display import table

        return table(self.rows, self.columns)


Named = Result | str | Path


def compare(
    runs: Named | Sequence[Named] = (),
    *,
    baseline: Named | None = None,
    group: bool = True,
    where: Sequence[str] = (),
    columns: Sequence[str] = (),
    pareto: Sequence[str] = (),
    sort: str | None = None,
    reverse: bool = False,
    root: Path | str = ROOT,
) -> Comparison:
    """Runs side by side: results, names of runs and sweeps, paths.

    None: all under `root` but those of sweeps, in order of time. The rest is as of `paceline compare`.
    Raises ConfigError, RunNameError, CorruptRunError or TableError.
    """
    check_options("a text or a Path", root=root)
    if not isinstance(runs, Result):
        check_options("names, paths or results", runs=runs)
    names = [runs] if isinstance(runs, Named) else list(runs)
    found = _gathered(names, Path(root)) if names else sources.every(Path(root))
    if not found:
        raise RunNameError(f"there are no runs under {root} yet")
    reference = None
    if baseline is not None:
        found, reference = _with_baseline(found, baseline, Path(root))
    asked = tables.ComparisonRequest(reference, group, tuple(where), tuple(pareto), tuple(columns), sort, reverse)
    rows, shown = tables.table(found, asked)
    return Comparison(rows, shown, tables.column_keys(asked, found, rows))


def _gathered(names: Sequence[Named], root: Path) -> list[RunData]:
    return sources.gather([str(name.path if isinstance(name, Result) else name) for name in names], root, whole=True)


def _with_baseline(found: list[RunData], baseline: Named, root: Path) -> tuple[list[RunData], RunData]:
    """The runs, the baseline among them, and the baseline."""
    known = tables.find(found, baseline) if isinstance(baseline, str) else None
    if known is not None:
        return found, known
    others = _gathered([baseline], root)
    if len(others) > 1:
        raise TableError(f"baseline {baseline}: must be one run, and is {len(others)}")
    there: dict[Any, RunData] = {run.path: run for run in found}
    if others[0].path in there:
        return found, there[others[0].path]
    return [*others, *found], others[0]
