"""Results go to standard output, everything said beside them to standard error."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..tracking.run_data import RunData


class OutputError(Exception):
    """Standard output takes no more: a full disk."""

    exit_code = 3


NO_WORD = 80  # columns of a terminal that does not say
_shown = False  # something was printed as a result
_results: TextIO | None = None  # where results go while standard output holds nothing else


def open_closed_streams() -> None:
    """A standard stream that the caller closed (`>&-`) becomes the null device.

    Otherwise the next socket or file takes its number, and is written to by whoever prints.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


@contextmanager
def results_alone() -> Iterator[None]:
    """Keeps everything but the output of `show` from standard output: what a user's class or a library prints in this
    process goes to standard error.
    """
    global _results
    sys.stdout.flush()
    results = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding)
    try:
        os.dup2(2, 1)
        _results = results
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results = None
        os.dup2(results.fileno(), 1)
        with suppress(OSError):  # `show` has told
            results.close()


def show(text: str) -> None:
    """Print a result, in characters that a terminal only shows. A reader that has seen enough (`| head`) is no error.
    Raises OutputError on any other.
    """
    global _shown
    stream, _shown = _results or sys.stdout, True
    plain = text.replace("\n", "")
    if not (plain.isascii() and plain.isprintable()):
        from ..tracking.visible import visible_result

        text = visible_result(text, in_colours())
    try:
        stream.write(_encodable(text if text.endswith("\n") else f"{text}\n", stream.encoding))
        stream.flush()
    except OSError as error:
        _discard(stream)
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write to standard output: {error.strerror or error}") from None


def show_json(value: Any) -> None:
    """Print it as one JSON document."""
    from ..tracking.values import finite

    show(json.dumps(finite(value), indent=2, default=str))


def show_error(document: "Mapping[str, Any]") -> None:
    """Print it as JSON, unless standard output has a document of the command already, or takes none.

    Nothing is imported: Ctrl-C may have left a module half imported.
    """
    if not _shown:
        with suppress(OutputError):
            show(json.dumps(document, indent=2))


def nothing_shown() -> None:
    """A command begins."""
    global _shown
    _shown = False


def _encodable(text: str, encoding: str | None) -> str:
    """Spells out characters that the encoding lacks."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.translate({ord("±"): "+/-", ord("─"): "-"})
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    return text


def note(text: str) -> None:
    """Say it beside the results, whatever is in it, in characters that a terminal only shows."""
    if not (text.isascii() and text.isprintable()):  # else nothing is imported: Ctrl-C may have come in an import
        from ..tracking.visible import visible_lines

        text = visible_lines(text)
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # nobody can be told
        _discard(sys.stderr)


def note_all(notes: "Iterable[str]") -> None:
    """Shows warnings that are no errors."""
    for text in notes:
        note(f"note: {text}")


def note_counted(notes: "Mapping[str, int]", things: str) -> None:
    """Each note once, with how many of a sweep's trials or points it is about."""
    for text, count in notes.items():
        note(f"note: {text} ({count} {things if count > 1 else things.removesuffix('s')})")


def note_disturbed(table: "Sequence[Mapping[str, Any]]") -> None:
    """Says which rows of a comparison other programs disturbed."""
    from ..tracking.disturbance import note_on

    if told := note_on(table):
        note(f"note: {told}")


def note_damage(runs: "Iterable[RunData]") -> None:
    """A line for each file that could not be read in whole."""
    for run in runs:
        for line in run.damage:
            note(line)


def _discard(stream: TextIO) -> None:
    """Discards the rest of the stream. Otherwise the interpreter tries to write it again as it ends, and fails."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def terminal_width() -> int | None:
    """Characters in a line of results: COLUMNS, or the terminal's; None when they go to a file or a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given[:9]) > 0:
        return int(given[:9])
    stream = _results or sys.stdout
    return (os.get_terminal_size(stream.fileno()).columns or NO_WORD) if stream.isatty() else None


def in_colours() -> bool:
    """Returns whether results may have colours: a person looks at a terminal, and has not said no (no-color.org)."""
    stream = _results or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def shortest(path: Path) -> Path:
    """Relative to here, when it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def aligned(table: list[list[str]], numbers_from: int) -> list[str]:
    """The rows as lines with columns of one width; from column `numbers_from` on flush right."""
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    lines: list[str] = []
    for row in table:
        blanks = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [
            cell + blank if i < numbers_from else blank + cell
            for i, (cell, blank) in enumerate(zip(row, blanks, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    """Returns the columns of a terminal that it takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
