"""The HTML report: one file that opens offline in a browser, with plots, the table and every configuration."""

from pathlib import Path

from ..run_directory import write_atomically
from ..sources import RunData

__all__ = ["write_report"]


def write_report(runs: list[RunData], file: Path) -> None:
    """Runs side by side, in the order given, as one HTML file. Raises StorageError when it cannot be written."""
    from .document import document
    from .page import page

    write_atomically(file, page(document(runs)))
