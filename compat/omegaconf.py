"""Composing without OmegaConf's resolvers, which read the environment (`oc.env`) or parse text anew (`oc.decode`).

Interpolations are bounded, too: a text of twenty others of twenty others is short, and takes minutes to resolve.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from omegaconf import Container, OmegaConf
from omegaconf.errors import InterpolationResolutionError

MOST = 1_000_000  # characters that the interpolations of a configuration may stand for
COST = 100  # characters that an interpolation counts for by itself, as resolving it takes 0.1 ms

_closed = ContextVar("_closed", default=False)
_left = ContextVar("_left", default=MOST)
_by_name: Callable[[str], Any] = OmegaConf._get_resolver
_by_key: Callable[..., Any] = Container._resolve_node_interpolation


class TooManyInterpolationsError(InterpolationResolutionError):
    """Interpolations of interpolations stand for more than `MOST` characters."""


@contextmanager
def no_resolvers() -> Iterator[None]:
    """Makes every interpolation that calls a resolver raise `UnsupportedInterpolationType`, however it names it.

    Interpolations of other keys (`${batch_size}`) go on. Other threads are not concerned.
    """
    before, left = _closed.set(True), _left.set(MOST)
    try:
        yield
    finally:
        _closed.reset(before)
        _left.reset(left)


def _unless_closed(name: str) -> Any:
    return None if _closed.get() else _by_name(name)


def _counted(self: Container, *args: Any, **named: Any) -> Any:
    found = _by_key(self, *args, **named)
    if _closed.get():
        value = found._value()
        _left.set(_left.get() - COST - (len(value) if isinstance(value, str) else 0))
        if _left.get() < 0:
            raise TooManyInterpolationsError(
                f"interpolations (${{...}}) stand for more than {MOST:,} characters. Write the values"
            )
    return found


Container._resolve_node_interpolation = _counted  # by which OmegaConf finds what an interpolation of a key stands for
OmegaConf._get_resolver = staticmethod(_unless_closed)  # the one function by which OmegaConf finds a resolver
