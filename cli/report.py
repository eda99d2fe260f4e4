"""`paceline report`: runs side by side in a browser, written to a file, or served while they go on."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .compare import check_file, gathered
from .completion import complete_source
from .output import note_damage, shortest, show

if TYPE_CHECKING:
    from ..tracking.run_data import RunData


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Runs, sweeps, SWEEP/RUN. Default: all under runs/ but those of sweeps.",
            show_default=False,
            autocompletion=complete_source,
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it on this host's loopback interface until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --serve. 0: any that is free.")] = 0,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it to a file that opens offline.", show_default=False)
    ] = None,
) -> None:
    """The report of runs in a browser: the table, curves and configurations of `paceline compare --html`.

    Served, the page loads itself again as runs go on. Only this host can ask for it, and only who knows the address,
    which is printed. Ctrl-C ends it, with exit status 0.

    \b
    paceline report --serve
    paceline report my-sweep --serve --port 8000
    paceline report first-asp first-bsp --html report.html
    """
    from ..tracking.errors import TableError

    if serve == (html is not None):
        raise TableError("report takes either --serve or --html FILE")
    check_file("--html", html)
    note_damage(gathered(runs, records=False))
    if html is not None:
        from ..tracking.report.page import page
        from ..tracking.run_directory import write_atomically

        write_atomically(Path(os.path.realpath(html)), page(_document(runs)))
        show(str(shortest(html)))
        return
    _serve(runs, port)


def _serve(names: list[str] | None, port: int) -> None:
    """Raises StorageError where the port is taken."""
    from ..tracking.report.page import page
    from ..tracking.report.serve import PageServer
    from .serving import serve

    def server() -> PageServer:
        return PageServer(port, lambda: _version(names), lambda version: page(_document(names), version))

    serve(port, server, "served to this host alone, until Ctrl-C", "no longer served")


def _found(names: list[str] | None, records: bool) -> "list[RunData]":
    from ..engine import ROOT
    from ..tracking import sources

    return sources.gather(names, ROOT, records) if names else sources.every(ROOT, records)


def _version(names: list[str] | None) -> str:
    """Another one once a file of the runs has changed, or a run has come."""
    told = hashlib.blake2b(digest_size=8)
    for run in _found(names, records=False):
        files = [run.file] if run.path is None else [run.path / name for name in ("metrics.jsonl", "summary.json")]
        for file in files:
            stat = file.stat() if file is not None and file.exists() else None
            told.update(f"{file} {stat and (stat.st_mtime_ns, stat.st_size)}\n".encode())
    return told.hexdigest()


def _document(names: list[str] | None) -> dict[str, Any]:
    from ..tracking import compare as tables
    from ..tracking.figures.built import usable
    from ..tracking.figures.request import of_sweeps
    from ..tracking.judged import best_first, metric_of
    from ..tracking.report.document import document

    request = tables.ComparisonRequest(None, True, (), (), (), None, False)
    found = _found(names, records=True)
    table, runs = tables.table(found, request)
    metric = metric_of(runs)
    ranked = table if metric is None else best_first(table, metric, runs)
    return document(runs, ranked, tables.column_keys(request, found, table), metric, usable(runs, of_sweeps(runs)))
