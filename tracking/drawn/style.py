"""The size, title and font of a picture, as a paper wants them.

A size is that of the whole picture. The area between the axes takes what the titles and the legend leave, so that
letters keep their size. Where they leave less than `LEAST`, the whole picture is scaled down.
"""

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Protocol

from ..errors import TableError
from ..visible import visible
from . import svg

WIDE, HIGH = 420.0, 250.0  # pixels of the area between the axes
LEAST = 60.0  # of it
PIXELS = {"in": 96.0, "cm": 96 / 2.54, "mm": 9.6 / 2.54, "px": 1.0}
POINT = 96 / 72  # pixels
LETTERS = 13.0  # pixels of a picture's letters
TITLE = 26.0  # pixels of the line above the picture
LARGEST = 60 * 96.0  # pixels of a side
_SIZE = re.compile(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)(in|cm|mm|px)?")
_HEAD = re.compile(r'(<svg [^>]*)viewBox="0 0 ([\d.e+]+) ([\d.e+]+)" width="[^"]*" height="[^"]*"')
_BODY = re.compile(r"(<rect class=\"page\"[^>]*/>\n)(.*)(</svg>\n)", re.DOTALL)


@dataclass(frozen=True)
class PlotArea:
    """The area between the axes, in pixels."""

    wide: float = WIDE
    high: float = HIGH


USUAL = PlotArea()


class MakesPicture(Protocol):
    def __call__(self, area: PlotArea = USUAL) -> str: ...


@dataclass(frozen=True)
class PictureStyle:
    """The look of a picture.

    Args:
        width: pixels of the whole picture.
        height: likewise.
        font: a TrueType file.
        family: the name of its family.
        points: the size of letters.
    """

    width: float | None = None
    height: float | None = None
    title: str = ""
    font: Path | None = None
    family: str = ""
    points: float | None = None

    @classmethod
    def parse(cls, size: str | None, title: str | None, font: str | None) -> "PictureStyle":
        """Raises TableError."""
        width, height = (None, None) if size is None else _size(size)
        file, points = (None, None) if font is None else _font(font)
        return cls(width, height, visible(title or ""), file, family_of(file) if file else "", points)

    def draw(self, make: MakesPicture) -> str:
        """Returns the picture that `make` draws, in this style."""
        zoom = (self.points or LETTERS / POINT) * POINT / LETTERS
        if self.width is None or self.height is None:
            picture = self._titled(make())
            width, height = _measured(picture)
            picture = _resized(picture, width, height, zoom * width, zoom * height)
        else:
            picture = self._fitted(make, self.width / zoom, self.height / zoom)
        return picture.replace(svg.FONT, f"'{self.family}', {svg.FONT}") if self.family else picture

    def _fitted(self, make: MakesPicture, width: float, height: float) -> str:
        """The picture laid out for so many pixels."""
        area = PlotArea()
        for _ in range(3):  # other ticks may take other room
            now = _measured(self._titled(make(area)))
            more = _measured(self._titled(make(PlotArea(area.wide + 50, area.high + 50))))
            area = PlotArea(_towards(area.wide, now[0], more[0], width), _towards(area.high, now[1], more[1], height))
        picture = self._titled(make(area))
        drawn = _measured(picture)
        assert self.width is not None and self.height is not None
        return _resized(picture, max(drawn[0], width), max(drawn[1], height), self.width, self.height)

    def _titled(self, picture: str) -> str:
        if not self.title:
            return picture
        width, height = _measured(picture)
        title = svg.text(10, 20, self.title, "title")
        down = f'<g transform="translate(0,{TITLE:g})">'
        moved = _BODY.sub(lambda body: f"{body[1]}{title}\n{down}\n{body[2]}</g>\n{body[3]}", picture)
        moved = re.sub(r"<title>[^<]*</title>", lambda _: f"<title>{escape(self.title)}</title>", moved, count=1)
        return _resized(moved, width, height + TITLE, width, height + TITLE)


def _towards(area: float, now: float, more: float, wanted: float) -> float:
    return max(LEAST, area + (wanted - now) * 50 / (more - now)) if more > now else area


def _measured(picture: str) -> tuple[float, float]:
    """The pixels that a picture was laid out for."""
    head = _HEAD.search(picture)
    assert head is not None, "no picture of ours"
    return float(head[2]), float(head[3])


def _resized(picture: str, width: float, height: float, shown_width: float, shown_height: float) -> str:
    """A page of other pixels, shown in a size of its own."""
    box = f'viewBox="0 0 {width:g} {height:g}" width="{shown_width:g}" height="{shown_height:g}"'
    picture = _HEAD.sub(lambda head: f"{head[1]}{box}", picture, count=1)
    page = f'<rect class="page" width="{width:g}" height="{height:g}"/>'
    return re.sub(r'<rect class="page" width="[^"]*" height="[^"]*"/>', page, picture, count=1)


def _size(text: str) -> tuple[float, float]:
    found = _SIZE.fullmatch(text)
    sides = [float(side) * PIXELS[found[3] or "in"] for side in (found[1], found[2])] if found else []
    if not sides or not all(LEAST <= side <= LARGEST for side in sides):
        raise TableError(f"--size {text}: must be WIDTHxHEIGHT, from 16mm to 60in. Choose 3.4x2.4in or 85x60mm.")
    return sides[0], sides[1]


def _font(text: str) -> tuple[Path | None, float | None]:
    """`FILE.ttf`, `9`, or `FILE.ttf,9`."""
    file, points = "", None
    for word in text.split(","):
        if re.fullmatch(r"\d+(\.\d+)?(pt)?", word):
            points = float(word.removesuffix("pt"))
        else:
            file = word
    wrong = (points is not None and not 3 <= points <= 72) or (file and not Path(file).is_file())
    if wrong or not (file or points):
        raise TableError(
            f"--font {text}: must be a TrueType file, a size from 3 to 72 points, or both. Choose 9 or FILE.ttf,9."
        )
    return Path(file) if file else None, points


def family_of(font: Path) -> str:
    """The family's name in a TrueType file. Raises TableError."""
    from reportlab.pdfbase.ttfonts import TTFError, TTFontFile

    try:
        name = TTFontFile(str(font)).familyName
    except (TTFError, OSError, ValueError, IndexError) as error:
        raise TableError(f"--font {font}: cannot be read as a TrueType font ({error}). Choose another file.") from None
    text = name.decode("latin-1") if isinstance(name, bytes) else str(name)
    return re.sub(r"[^\w .-]", "", text)
