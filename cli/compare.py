"""`paceline compare`: runs side by side."""

from typing import Annotated, Literal

import typer

from .completion import complete_run
from .output import show, terminal_width

Format = Literal["table", "json", "csv", "markdown"]


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Names of runs, or their directories. Default: every run under runs/, in order of time.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ] = None,
    format: Annotated[Format, typer.Option(help="json and csv hold raw values, with units in the names.")] = "table",
    sort: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Best first: throughput, accuracy, step, memory, bytes, ...")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="With --sort: worst first.")] = False,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Add speed-ups against this run.", autocompletion=complete_run),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show each kind of memory, of the largest worker, instead of the rest.")
    ] = False,
) -> None:
    """Set runs side by side.

    Throughput, step time, memory, bytes sent, accuracy and time to accuracy, one row a run. A run with a damaged
    summary is shown as damaged; one that is named (RUN, --baseline) ends the command with exit status 7.

    \b
    paceline compare                                every run under runs/
    paceline compare bsp asp --baseline bsp         two runs, with speed-ups against one
    paceline compare --sort accuracy | head -5      the best four
    paceline compare --memory                       where the memory went
    paceline compare --format markdown >> README.md
    """
    from ..engine import ROOT
    from ..tracking import compare as tables
    from ..tracking.errors import RunNameError
    from ..tracking.run_directory import RunDirectory, run_names

    names = runs or run_names(ROOT)
    if not names:
        raise RunNameError(f"there are no runs under {ROOT} yet; train one: paceline train")
    directories = [RunDirectory.open(ROOT, name) for name in names]
    if runs:
        for run in directories:
            tables.check(run)
    else:
        directories.sort(key=lambda run: run.metrics.stat().st_mtime)
    reference = RunDirectory.open(ROOT, baseline) if baseline else None
    if reference:
        tables.check(reference)
    if reference and reference.path not in [run.path for run in directories]:
        directories.insert(0, reference)
    table = tables.rows(directories, reference)
    if sort is not None:
        table = tables.sort(table, sort, reverse)
    show(tables.render(table, format, terminal_width() if format == "table" else None, memory))
