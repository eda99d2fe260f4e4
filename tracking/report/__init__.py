"""The HTML report: one file that opens offline in a browser, with plots, the table and every configuration."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..figures.request import FigureRequest
from ..run_data import RunData
from ..run_directory import write_atomically

__all__ = ["write_report"]


def write_report(
    runs: list[RunData],
    file: Path,
    compared: Sequence[dict[str, Any]] = (),
    columns: Sequence[str] = (),
    metric: str | None = None,
    requests: Sequence[FigureRequest] = (),
) -> None:
    """Runs side by side, in the order given, as one HTML file. Raises StorageError when it cannot be written.

    `compared`: rows of `compare.table` to show before the runs, with the means of seeds, ratios to a baseline, the
    front; `columns`: the keys of it to show, instead of those that say something. `metric`: what a sweep was judged by;
    `requests`: figures over parameters, of which TableError is raised where the runs lack what is asked for.
    """
    from .document import document
    from .page import page

    write_atomically(
        Path(os.path.realpath(file)), page(document(runs, list(compared), columns, metric, requests))
    )  # through a symbolic link
