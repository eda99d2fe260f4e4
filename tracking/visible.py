"""Text from outside (an exception, an override, a file) as a terminal may be given it."""

import os
import re
import unicodedata
from typing import Literal

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_BREAKS = re.compile(r"(\r\n|[\n\t])")
_BREAKS_AND_COLOURS = re.compile(r"(\r\n|[\n\t]|\x1b\[[0-9;]*m)")


def colours() -> Literal["auto"] | None:
    """The `color_system` of rich's consoles: none where NO_COLOR is set (no-color.org), and then no bold or dim either,
    which rich would keep.
    """
    return None if os.environ.get("NO_COLOR") else "auto"


def visible(text: str) -> str:
    """Writes out control, formatting and other characters that a terminal acts upon: `\\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _UNSEEN else char for char in text
    )


def visible_lines(text: str) -> str:
    """Does the same as `visible` for a text of several lines, which stay lines."""
    return "\n".join(visible(line.replace("\t", "    ")) for line in text.split("\n"))


def visible_result(text: str, in_colours: bool) -> str:
    """Does the same as `visible` for a result, in which line breaks and tabs stay, and colours if they are ours."""
    pieces = (_BREAKS_AND_COLOURS if in_colours else _BREAKS).split(text)
    pieces[::2] = map(visible, pieces[::2])
    return "".join(pieces)
