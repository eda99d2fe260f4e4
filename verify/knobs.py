"""The values of a class's knobs that are worth a check, read off its constructor: one's own strategy has them, too.

A knob that is one of several words or numbers (`Literal`), or true or false, is given each; a whole number with a
lowest value (`Annotated[int, Ge(1)]`: stages, degrees, micro-batches) each of COUNTS from there on. Others, and seeds,
stay as they are.
"""

from collections.abc import Callable, Iterator
from itertools import product
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge

COUNTS = (1, 2, 4)
Knobs = dict[str, Any]


def variants(maker: Callable[..., object], knobs: Knobs, every: bool) -> Iterator[Knobs]:
    """Yields changes to `knobs`: first nothing, then one knob at a time; with `every`, all their combinations."""
    others = {name: values for name, values in _values(maker).items() if name in knobs}
    if every:
        whole = {
            name: [knobs[name], *(value for value in values if not _same(value, knobs[name]))]
            for name, values in others.items()
        }
        for chosen in product(*whole.values()):
            made = dict(zip(whole, chosen, strict=True))
            yield {name: value for name, value in made.items() if not _same(value, knobs[name])}
        return
    yield {}
    for name, values in others.items():
        yield from ({name: value} for value in values if not _same(value, knobs[name]))


def _same(one: object, other: object) -> bool:
    """1 is not true here."""
    return type(one) is type(other) and one == other


def _values(maker: Callable[..., object]) -> dict[str, list[Any]]:
    made = maker.__init__ if isinstance(maker, type) else maker
    hints = get_type_hints(made, include_extras=True)
    return {name: list(_of(hint)) for name, hint in hints.items() if name not in ("return", "seed")}


def _of(hint: Any) -> Iterator[Any]:
    if hint is bool:
        yield from (False, True)
    elif get_origin(hint) is Literal:
        yield from get_args(hint)
    elif get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from _of(one)
    elif get_origin(hint) is Annotated and get_args(hint)[0] is int:
        lowest = [int(str(rule.ge)) for rule in get_args(hint)[1:] if isinstance(rule, Ge)]
        yield from (count for count in COUNTS if lowest and count >= lowest[0])
