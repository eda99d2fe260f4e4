"""Results go to standard output, everything said beside them to standard error."""

import os
import shutil
import sys
from pathlib import Path


def show(text: str) -> None:
    """Print a result. A reader that has seen enough (`| head`) is no error."""
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter tries again as it ends


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def terminal_width() -> int | None:
    """Columns of the terminal that results go to; None when they go to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def shortest(path: Path) -> Path:
    """Relative to here, when it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def aligned(table: list[list[str]], numbers_from: int) -> list[str]:
    """The rows as lines with columns of one width; from column `numbers_from` on flush right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < numbers_from else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
