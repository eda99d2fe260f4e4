"""Runs in a notebook: tables as HTML, figures as SVG. Each text from a run is shown as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from .drawn.charts import drawings
from .drawn.style import MakesPicture
from .errors import TableError
from .figures.built import check, sheet_of
from .figures.request import FigureRequest
from .figures.spec import Against, Lines
from .rendering import for_people
from .run_data import RunData
from .run_directory import write_atomically
from .summaries import Row
from .text import did_you_mean, shown

_STYLE = "border-collapse:collapse;font-size:90%"


@dataclass(frozen=True)
class Picture:
    """A figure, which a notebook shows. `svg`: the picture itself."""

    name: str
    svg: str

    def __repr__(self) -> str:
        return f"Picture({self.name})"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, file: str | Path) -> Path:
        """Writes the SVG to a file. Raises StorageError."""
        write_atomically(Path(file), self.svg)
        return Path(file)


def table(rows: Sequence[Row], columns: Sequence[str] = (), caption: str = "") -> str:
    """A comparison's rows as an HTML table, as `rendering.render` shows them."""
    return table_of(*for_people(list(rows), columns), caption)


def table_of(titles: Sequence[str], numbers: Sequence[bool], cells: Sequence[Sequence[str]], caption: str = "") -> str:
    """`numbers`: which columns stand flush right."""
    sides = ["right" if is_number else "left" for is_number in numbers]
    head = "".join(_cell("th", title, side) for title, side in zip(titles, sides, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', text, side) for text, side in zip(line, sides, strict=True))}</tr>" for line in cells
    )
    above = f"<caption>{escape(shown(caption))}</caption>" if caption else ""
    return f'<table style="{_STYLE}">{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(tag: str, text: str, side: str) -> str:
    return f'<{tag} style="text-align:{side}">{escape(shown(text, 500))}</{tag}>'


def pictures(runs: Sequence[RunData], requests: Sequence[FigureRequest] = ()) -> dict[str, MakesPicture]:
    """Returns functions that make the SVG of each figure of these runs, by the figure's name. Raises TableError."""
    sheet = sheet_of(runs, requests=requests)
    figures = [figure for section in sheet.sections for figure in section.figures]
    drawn = [figure for figure in figures if figure.pictured or isinstance(figure, Lines)]
    if requests:
        drawn = [figure for figure in drawn if isinstance(figure, Against)]
    drawn.sort(key=lambda figure: figure.modelled)
    found: dict[str, MakesPicture] = {}
    for figure in drawn:
        for name, make in drawings(sheet, figure):
            found.setdefault(f"modelled-{name}" if figure.modelled and name in found else name, make)
    return found


def plot(runs: Sequence[RunData], what: str) -> Picture:
    """The figure `what`: a name, the beginning of one (`accuracy`), or `x=... y=... line=...`. Raises TableError."""
    requests = [FigureRequest.parse(what)] if "=" in what else []
    for request in requests:
        check(runs, request)
    found = pictures(runs, requests)
    wanted = what.strip().replace(" ", "-")
    name = next(iter(found), None) if requests else next((name for name in found if name == wanted), None)
    name = name or next((name for name in found if name.startswith(f"{wanted}-")), None)
    if name is None:
        hint = did_you_mean(wanted, found) or f"there are {', '.join(found) or 'none'}"
        raise TableError(f"plot {what!r}: these runs have no such figure; {hint}")
    return Picture(name, found[name]())
