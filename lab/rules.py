"""The rule of a value in words and in choices, read from the type that the engine holds the value to."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from ..conf.grammar import as_override

_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "text"}
_BOUNDS: dict[type, tuple[str, str]] = {
    Ge: ("ge", "at least"),
    Gt: ("gt", "above"),
    Le: ("le", "at most"),
    Lt: ("lt", "below"),
}


@dataclass(frozen=True)
class ValueRule:
    """`values`: all that there are, as one types them; (): the values are described by `words` alone."""

    words: str = ""
    values: tuple[str, ...] = ()


def rule_of(hint: Any) -> ValueRule:
    """`hint`: None where the engine knows no rule."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [member for member in members if member is not type(None)]
    null = ("null",) if len(kinds) < len(members) else ()
    if all(kind is bool or get_origin(kind) is Literal for kind in kinds):
        values = [value for kind in kinds for value in ((True, False) if kind is bool else get_args(kind))]
        return ValueRule("", (*map(as_override, values), *null))
    words = [_words(kind) for kind in kinds]
    return ValueRule(" or ".join([*words, *null]) if all(words) else "")


def _words(hint: Any) -> str:
    """Returns "" for a type that this page has no words for."""
    if get_origin(hint) is Annotated:
        kind, *rules = get_args(hint)
        bounds = [
            f"{words} {getattr(rule, name):,}"
            for rule in rules
            if type(rule) in _BOUNDS
            for name, words in [_BOUNDS[type(rule)]]
        ]
        return ", ".join([_words(kind), *bounds])
    if get_origin(hint) is Literal:
        return ", ".join(map(as_override, get_args(hint)))
    if get_origin(hint) in (list, tuple, Sequence):
        inner = [each for each in get_args(hint) if each is not Ellipsis]
        return f"a list such as [1,2] ({_words(inner[0])})" if inner and _words(inner[0]) else "a list"
    return _KINDS.get(hint, "")
