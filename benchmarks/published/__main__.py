"""See the package; `make predictions ARGS="FOLDER"`."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.cost.device import Efficiency

from .fitting import fitted
from .levels import fitted_levels
from .rows import UnusableFolder, cases_of, is_fitted, read
from .tables import held, links_inside, memory, plans, rankings, software, times


def main(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Has runs.csv, others like it (runs_2025.csv), and hardware.csv.", exists=True, file_okay=False
        ),
    ],
    fit: Annotated[bool, typer.Option(help="Fit the constants and the levels once more, and print them.")] = False,
    worst: Annotated[int, typer.Option(help="So many rows with the largest errors of each group.", min=0)] = 0,
    group: Annotated[list[str] | None, typer.Option(help="Only these groups.")] = None,
) -> None:
    try:
        _show(folder, fit, worst, group or [])
    except UnusableFolder as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from None


def _show(folder: Path, fit: bool, worst: int, groups: list[str]) -> None:
    rows = [row for path in [folder / "runs.csv", *sorted(folder.glob("runs_*.csv"))] for row in read(path)]
    fits = Efficiency()
    cases, unscored = cases_of(rows)
    if fit:
        fits = fitted([case for case in cases if is_fitted(case.row) and case.seconds])
        print(fits, end="\n\n")
        print("\n".join(fitted_levels([case for case in cases if not is_fitted(case.row)], fits)), end="\n\n")
    print("\n".join(links_inside(read(folder / "hardware.csv"))), end="\n\n")
    print("\n".join(times(cases, unscored, fits, worst, groups)), end="\n\n")
    print("\n".join(software(cases, fits)), end="\n\n")
    print("\n".join(plans(cases, fits)), end="\n\n")
    print("\n".join(rankings(cases, fits)), end="\n\n")
    print("\n".join(memory(cases)), end="\n\n")
    print("\n".join(held(cases)))


if __name__ == "__main__":
    typer.run(main)
