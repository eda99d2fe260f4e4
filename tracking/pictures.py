"""Writes figures as SVG, PNG and PDF files, for papers. PNG and PDF are converted from the SVG."""

from collections.abc import Sequence
from pathlib import Path

from .drawn.charts import drawings
from .drawn.converted import pdf_of, png_of
from .drawn.style import PictureStyle
from .errors import StorageError
from .figures.built import sheet_of
from .figures.request import FigureRequest
from .figures.spec import Against, Figure, Sheet
from .run_data import RunData
from .run_directory import write_atomically

STANDARD = PictureStyle()


def write_pictures(
    runs: list[RunData],
    directory: Path,
    requests: Sequence[FigureRequest] = (),
    alone: bool = False,
    style: PictureStyle = STANDARD,
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
    return draw(sheet, sorted(figures, key=lambda figure: figure.modelled), directory, style)


def draw(sheet: Sheet, figures: list[Figure], directory: Path, style: PictureStyle = STANDARD) -> list[Path]:
    """Returns the files, and makes no directory for none. Raises StorageError."""
    if not figures:
        return []
    files: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            for name, make in drawings(sheet, figure):
                svg = style.draw(make)
                stem = f"{'modelled-' if figure.modelled else ''}{name}"
                formats = {
                    "svg": svg.encode(),
                    "png": png_of(svg, style.font),
                    "pdf": pdf_of(svg, style.font, style.family),
                }
                for suffix, content in formats.items():
                    files.append(directory / f"{stem}.{suffix}")
                    write_atomically(files[-1], content)
    except OSError as error:
        raise StorageError(f"cannot write pictures to {directory}: {error.strerror or error}") from error
    return files
