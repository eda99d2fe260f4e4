"""The choice of a view of a run's progress: live, a line in place, or lines."""

import os
import sys
from pathlib import Path
from typing import TextIO

from .mirror import Sink
from .progress import ProgressLines


def progress(directory: Path, stream: TextIO | None = None, plain: bool = False) -> Sink:
    """A live view when `stream` (standard error) is a terminal that can go up a line, a line in place in a notebook,
    else, and if `plain`, lines.

    `directory`: the run's.
    """
    if stream is None and not plain and in_notebook():
        from .notebook import NotebookCell

        return NotebookCell()
    chosen = sys.stderr if stream is None else stream
    if plain or not chosen.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return ProgressLines(chosen)
    from .view import LiveView

    return LiveView(directory, chosen)


def in_notebook() -> bool:
    """Returns True if IPython runs this process for a notebook, and not in a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
