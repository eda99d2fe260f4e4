"""The common parts of all pictures: SVG that runs no script and loads no file.

Colours are the palette's, for a light page, a dark one (prefers-color-scheme) and print, which is light. Nothing rests
on colour alone: kinds of bars differ in their patterns too, and have words beside them.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import count

from ..figures.palette import DARK, LIGHT

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif"
IN_THE_DARK = "@media screen and (prefers-color-scheme: dark)"
LETTER = 7.0  # pixels that a character takes, about
_CLASS = re.compile(r'class="([^"]*)"')
_PICTURE = re.compile(r"<svg .*?</svg>", re.DOTALL)
_ID = re.compile(r'( id="|url\(#)([\w-]+)')
TILE = 8  # pixels of a side of a pattern's tile
_PATTERNS = (  # of colour i: what is drawn over it, in a tile
    "",
    "M-2,2 L2,-2 M0,8 L8,0 M6,10 L10,6",
    "M1.5,2 h2 M5.5,6 h2",
    "M0,2 h8 M0,6 h8",
    "M0,0 L8,8 M8,0 L0,8",
    "M-2,6 L2,10 M0,0 L8,8 M6,-2 L10,2",
    "M2,0 v8 M6,0 v8",
    "M0,4 h8 M4,0 v8",
)


def _rules(page: str, words: str, quiet: str, line: str, colours: Sequence[str], used: set[str]) -> str:
    """Returns the CSS rules of the classes that are used."""
    kinds = {f"c{i}": f"fill: {colour}" for i, colour in enumerate(colours)}
    kinds |= {f"s{i}": f"stroke: {colour}; fill: none" for i, colour in enumerate(colours)}
    rules = {
        "page": f"fill: {page}",
        "small": f"fill: {quiet}",
        "empty": f"fill: {line}",
        "line": f"stroke: {line}",
        "dark": f"stroke: {words}; fill: none",
        "head": f"fill: {words}",
        "over": f"stroke: {page}",
        "void": f"fill: none; stroke: {quiet}",
        **kinds,
    }
    return f"text {{ fill: {words} }} " + " ".join(f".{name} {{ {rules[name]} }}" for name in rules if name in used)


def _style(used: set[str]) -> str:
    light = _rules("#ffffff", "#16202a", "#55606c", "#e1e6eb", LIGHT, used)
    dark = _rules("#161a20", "#e8ecf1", "#a7b1bd", "#39424d", DARK, used)
    return (
        f"text {{ font-size: 13px; font-family: {FONT} }} "
        ".title { font-weight: bold } .small { font-size: 11.5px } "
        ".over { fill: none; stroke-width: 1.1 } .void { stroke-width: 0.8 } "
        f".strong {{ stroke-width: 2 }} .ring {{ stroke-width: 3 }} {light}\n"
        f"{IN_THE_DARK} {{ {dark} }}"
    )


def document(
    title: str,
    says: str,
    width: float,
    height: float,
    parts: Iterable[str],
    more: str = "",
    keep: Iterable[str] = (),
) -> str:
    """`says`: the picture in words, for who cannot see it. `more`: further definitions. `keep`: classes whose rules it
    has, used or not.
    """
    drawn = "\n".join(parts)
    used = {word for each in _CLASS.findall(drawn + more) for word in each.split()} | {"page", "over", "void", *keep}
    tiles = "".join(
        f'<pattern id="p{i}" width="{TILE}" height="{TILE}" patternUnits="userSpaceOnUse">'
        f'<path class="over" d="{path}"/></pattern>'
        for i, path in enumerate(_PATTERNS)
        if path and f"url(#p{i})" in drawn
    )
    hatch = (
        f'<pattern id="no" width="{TILE}" height="{TILE}" patternUnits="userSpaceOnUse">'
        f'<path class="void" d="{_PATTERNS[1]}"/></pattern>'
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(says)}</desc>",
        f"<style>{_style(used)}</style>",
        f"<defs>{tiles}{hatch}{more}</defs>",
        f'<rect class="page" width="{width:g}" height="{height:g}"/>',
        drawn,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def with_ids_apart(html: str) -> str:
    """Returns a page's HTML in which no two of its pictures have the same id. The first picture keeps its ids."""
    numbers = count()

    def numbered(picture: re.Match[str]) -> str:
        number = next(numbers)
        return _ID.sub(rf"\g<1>\g<2>-{number}", picture[0]) if number else picture[0]

    return _PICTURE.sub(numbered, html)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    of = f' class="{kind}"' if kind else ""
    at = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.2f}" y="{y:.2f}"{of}{at}>{escape(words)}</text>'


def bar(x: float, y: float, width: float, height: float, colour: int, title: str, pale: bool = False) -> str:
    """Draws a bar in the colour, with its pattern. The title is a tooltip. `pale`: it shows a prediction."""
    box = f'x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.0):.2f}" height="{height:.2f}"'
    said = f"<title>{escape(title)}</title>"
    opacity = ' fill-opacity="0.5"' if pale else ""
    over = f'<rect {box} fill="url(#p{colour})" pointer-events="none"/>' if _PATTERNS[colour] else ""
    return f'<rect {box} class="c{colour}"{opacity}>{said}</rect>{over}'


def gap(x: float, y: float, width: float, height: float, title: str) -> str:
    """Draws a place where nothing is done, or where there is nothing."""
    box = f'x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.0):.2f}" height="{height:.2f}"'
    said = f"<title>{escape(title)}</title>"
    return f'<rect {box} class="empty">{said}</rect><rect {box} class="void" pointer-events="none"/>'


def key(x: float, y: float, colour: int, words: str, pale: bool = False) -> str:
    """An entry of the legend."""
    return bar(x, y, 18, 12, colour, words, pale) + text(x + 24, y + 10.5, words, "small")


def legend(x: float, y: float, entries: Sequence[tuple[int, str]]) -> list[str]:
    found: list[str] = []
    for colour, words in entries:
        found.append(key(x, y, colour, words))
        x += 24 + LETTER * len(words) + 18
    return found


def ticks(most: float, about: int = 5) -> list[float]:
    """0, 20, 40, ...: `about` so many, 1, 2 or 5 times a power of ten apart, up to `most`."""
    if not most > 0:
        return [0.0]
    power = 1.0
    while power * 10 <= most / about:
        power *= 10
    while power > most / about:
        power /= 10
    step = next(times * power for times in (1, 2, 5, 10) if times * power * (about + 0.5) >= most)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]
