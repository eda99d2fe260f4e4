"""Names and values from anywhere, as text that a reader sees as it is."""

import difflib
import json
import unicodedata
from collections.abc import Iterable
from itertools import islice
from typing import Any

NAME_CHARACTERS = 200
VALUE_CHARACTERS = 4000
# What reorders the text around it: a name must not look like another one.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Co", "Zl", "Zp"})


def shown(value: Any, limit: int = NAME_CHARACTERS) -> str:
    """`value` as text; control, surrogate and direction characters as \\u escapes, what is over `limit` counted."""
    text = value if isinstance(value, str) else str(value)
    rest = len(text) - limit
    if rest > 0:
        text = text[:limit]
    text = "".join(_visible(character) for character in text)
    return f"{text}... ({rest:,} more characters)" if rest > 0 else text


def _visible(character: str) -> str:
    if character in _BIDI or unicodedata.category(character) in _HIDDEN_CATEGORIES:
        code = ord(character)
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character


def plain(value: Any) -> str:
    """A value as a person would write it; of a nested one no more than is shown, however far it goes on."""
    if isinstance(value, str):
        return value
    try:
        parts = json.JSONEncoder(default=str, ensure_ascii=False).iterencode(value)
        return "".join(islice(parts, VALUE_CHARACTERS))
    except (ValueError, TypeError, RecursionError) as error:  # a YAML that contains itself
        return f"({type(error).__name__}: {error})"


def did_you_mean(name: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """Returns `did you mean bsp or asp?`, or "" where no name is near, in any case of letters."""
    folded = {each.casefold(): each for each in names}
    close = [folded[each] for each in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=cutoff)]
    return f"did you mean {' or '.join(close)}?" if close else ""
