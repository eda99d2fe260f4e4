"""Values as Hydra's grammar of overrides writes them."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

_TEXT = re.compile(r"[A-Za-z_./][\w./:@%-]*", re.ASCII)
_WORDS = ("null", "true", "false", "inf", "nan")  # that Hydra takes for more than text
_TYPED = re.compile(r"[A-Za-z0-9_./@+-]+")
_BEFORE_QUOTE = re.compile(r"(\\*)('|\Z)")
_BEFORE_DOUBLE = re.compile(r'(\\*)("|\Z)')


def listed(given: str | Sequence[str]) -> list[str]:
    """Returns texts as a list; one text is a list of one, and not of its letters."""
    return [given] if isinstance(given, str) else list(given)


def as_override(value: Any, exact: bool = True) -> str:
    """`exact`: it is read back as what it is. Otherwise text is as it would be typed, and "1e-3" read as a number."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{','.join(as_override(item, exact) for item in value)}]"
        case dict():
            return f"{{{','.join(f'{key}:{as_override(item, exact)}' for key, item in value.items())}}}"
    text = str(value)
    if is_plain(text) if exact else _TYPED.fullmatch(text):
        return text
    # in quotes a backslash means itself, unless it stands before a quote
    return "'" + _BEFORE_QUOTE.sub(lambda found: found[1] * 2 + (r"\'" if found[2] else ""), text) + "'"


def is_plain(text: str) -> bool:
    """Returns whether Hydra reads the text as itself without quotes."""
    return _TEXT.fullmatch(text) is not None and text.lower() not in _WORDS


def typed(key: str, value: str | Sequence[str]) -> str:
    """Returns `key=value` as one types it: a POSIX shell and then Hydra make the value of it."""

    def read(text: str) -> str:
        return text if is_plain(text) else as_text(text)

    written = read(value) if isinstance(value, str) else f"[{','.join(map(read, value))}]"
    return shlex.quote(f"{key}={written}")


def as_text(text: str) -> str:
    """Returns the text in double quotes, which a shell's single ones can hold."""
    return '"' + _BEFORE_DOUBLE.sub(lambda found: found[1] * 2 + (r"\"" if found[2] else ""), text) + '"'
