"""Values as Hydra's grammar of overrides writes them."""

import re
from typing import Any

_TEXT = re.compile(r"[A-Za-z_./][\w./:@%-]*")
_WORDS = ("null", "true", "false", "inf", "nan")  # that Hydra takes for more than text
_TYPED = re.compile(r"[A-Za-z0-9_./@+-]+")
_BEFORE_QUOTE = re.compile(r"(\\*)('|$)")
_BEFORE_DOUBLE = re.compile(r'(\\*)("|$)')


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
    if (_TEXT.fullmatch(text) and text.lower() not in _WORDS) if exact else _TYPED.fullmatch(text):
        return text
    # in quotes a backslash means itself, unless it stands before a quote
    return "'" + _BEFORE_QUOTE.sub(lambda found: found[1] * 2 + (r"\'" if found[2] else ""), text) + "'"


def as_text(text: str) -> str:
    """Returns the text in double quotes, which a shell's single ones can hold."""
    return '"' + _BEFORE_DOUBLE.sub(lambda found: found[1] * 2 + (r"\"" if found[2] else ""), text) + '"'
