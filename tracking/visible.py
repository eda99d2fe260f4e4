"""Text from outside (an exception, an override, a file) as a terminal may be given it."""

import os
import unicodedata
from typing import Literal

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


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
