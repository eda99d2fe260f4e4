"""Writes figures as SVG, PNG and PDF files, for papers. PNG and PDF are converted from the SVG."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from .drawn.charts import drawings
from .errors import MissingPackageError, StorageError
from .figures.built import sheet_of
from .figures.request import Request
from .figures.spec import Against, Figure, Sheet
from .run_data import RunData

DOTS_PER_INCH, PIXELS_PER_INCH = 200, 96
_DATE = re.compile(rb"/CreationDate \(D:[^)]*\)")


def write_pictures(
    runs: list[RunData], directory: Path, requests: Sequence[Request] = (), alone: bool = False
) -> list[Path]:
    """Each figure that is to be pictured, as .svg, .png and .pdf. Raises StorageError when one cannot be written.

    What no run knows has no picture. Modelled runs have pictures of their own, whose names begin with modelled-.
    `requests`: figures over parameters, of which TableError is raised where the runs lack what is asked for; `alone`:
    these and no other.
    """
    sheet = sheet_of(runs, requests=requests)
    figures = [figure for section in sheet.sections for figure in section.figures if figure.pictured]
    if alone:
        figures = [figure for figure in figures if isinstance(figure, Against)]
    return draw(sheet, sorted(figures, key=lambda figure: figure.modelled), directory)


def draw(sheet: Sheet, figures: list[Figure], directory: Path) -> list[Path]:
    """Returns the files, and makes no directory for none. Raises StorageError."""
    if not figures:
        return []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        files: list[Path] = []
        for figure in figures:
            for name, make in drawings(sheet, figure):
                file = directory / f"{'modelled-' if figure.modelled else ''}{name}.svg"
                file.write_text(make(), encoding="utf-8")
                files.append(file)
        return [file for svg in files for file in (svg, *_converted(svg))]
    except OSError as error:
        raise StorageError(f"cannot write pictures to {directory}: {error.strerror or error}") from error


def _converted(svg: Path) -> list[Path]:
    """The PNG and the PDF. They hold no date: the same runs give the same files. Raises `MissingPackageError`."""
    try:
        import cairosvg
    except (ImportError, OSError) as error:  # OSError: the package is there, and cairo itself is not
        raise MissingPackageError(
            f"{svg.parent}: the .svg files are written. The .png and .pdf need the cairo library. "
            "Install it with: pip install cairosvg, and apt-get install libcairo2"
        ) from error
    content, convert = svg.read_bytes(), cast(Any, cairosvg)  # which says no types of its own
    png: bytes = convert.svg2png(content, scale=DOTS_PER_INCH / PIXELS_PER_INCH)
    pdf: bytes = _DATE.sub(
        lambda date: b"/CreationDate (" + b" " * (len(date[0]) - 16) + b")", convert.svg2pdf(content)
    )
    files = [svg.with_suffix(".png"), svg.with_suffix(".pdf")]
    for file, converted in zip(files, (png, pdf), strict=True):
        file.write_bytes(converted)
    return files
