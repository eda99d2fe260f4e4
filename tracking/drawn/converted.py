"""Converts pictures from SVG to PNG and PDF, with libraries whose wheels hold everything they need.

Both formats show the colours of a light page. Text is set in Bitstream Vera, which reportlab's package holds. No font
of the system is read, so that the same picture has the same bytes on every machine.
"""

import math
import re
from collections.abc import Iterator
from functools import cache, partial
from importlib.util import find_spec
from io import BytesIO
from itertools import count, product
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError
from . import svg

FAMILY = "Bitstream Vera Sans"
LIBRARIES = ("resvg_py", "svglib", "reportlab")
DOTS_PER_INCH, PIXELS_PER_INCH = 200, 96
_PATTERN = re.compile(r'<pattern id="(\w+)"[^>]*><path class="(\w+)" d="([^"]*)"/></pattern>')
_PATTERNED = re.compile(
    r'<rect x="([-\d.]+)" y="([-\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="url\(#(\w+)\)" pointer-events="none"/>'
)
_POINT = re.compile(r"([ML])([-\d.]+),([-\d.]+)")


def check_there() -> None:
    """Checks that the libraries are installed. Raises `MissingPackageError`."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"--png: {missing[0]}, which converts pictures to PNG and PDF, is not installed; "
            "pip install 'paceline[figures]'"
        )


def png_of(picture: str, font: Path | None = None) -> bytes:
    """Returns the PNG, of 200 dots per inch. `font`: the file of the picture's own first family."""
    from resvg_py import svg_to_bytes

    return svg_to_bytes(
        svg_string=_in_vera(picture),
        zoom=DOTS_PER_INCH / PIXELS_PER_INCH,
        skip_system_fonts=True,
        font_files=[str(file) for file in ([font] if font else []) + [*_font_files()]],
    )


def pdf_of(picture: str, font: Path | None = None, family: str = "") -> bytes:
    """Returns the PDF, of one page. It holds no date, and embeds its only font: `font`, of the family, or our own."""
    from reportlab.graphics.renderPDF import drawToString
    from svglib.svglib import svg2rlg

    files = (font, font) if font else _font_files()
    _register_font(family or FAMILY, *files)
    drawing: Any = svg2rlg(BytesIO(_without_patterns(_in_vera(picture)).encode()))
    drawing.initialFontName = family or FAMILY  # else the file names Helvetica, too
    pdf: Any = drawToString(drawing, invariant=1)
    return pdf


def _in_vera(picture: str) -> str:
    return picture.replace(svg.FONT, f"'{FAMILY}'")


def _font_files() -> tuple[Path, Path]:
    """Returns the regular font and the bold font."""
    import reportlab

    fonts = Path(reportlab.__file__).parent / "fonts"
    return fonts / "Vera.ttf", fonts / "VeraBd.ttf"


@cache
def _register_font(family: str, regular: Path, bold: Path) -> None:
    from svglib.fonts import register_font_family

    register_font_family(family, str(regular), str(bold))


def _without_patterns(picture: str) -> str:
    """Replaces each pattern by its lines, clipped to the rectangle: svglib draws no patterns."""
    patterns = {name: (kind, path) for name, kind, path in _PATTERN.findall(picture)}
    numbers = count()

    def lines(rectangle: re.Match[str]) -> str:
        x, y, width, height, name = rectangle.groups()
        kind, path = patterns[name]
        drawn = " ".join(_tiles(path, float(x), float(y), float(width), float(height)))
        clip = f"clip{next(numbers)}"
        box = f'<rect x="{x}" y="{y}" width="{width}" height="{height}"/>'
        return f'<clipPath id="{clip}">{box}</clipPath><path class="{kind}" clip-path="url(#{clip})" d="{drawn}"/>'

    return _PATTERNED.sub(lines, _PATTERN.sub("", picture))


def _tiles(path: str, left: float, top: float, width: float, height: float) -> Iterator[str]:
    """Yields the path of one tile, moved to each tile of the page that touches the rectangle."""
    rows = range(math.floor(top / svg.TILE), math.ceil((top + height) / svg.TILE))
    columns = range(math.floor(left / svg.TILE), math.ceil((left + width) / svg.TILE))
    for row, column in product(rows, columns):
        yield _POINT.sub(partial(_moved, right=column * svg.TILE, down=row * svg.TILE), path)


def _moved(point: re.Match[str], right: int, down: int) -> str:
    return f"{point[1]}{float(point[2]) + right:g},{float(point[3]) + down:g}"
