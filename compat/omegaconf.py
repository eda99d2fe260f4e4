"""Composing without OmegaConf's resolvers, which read the environment (`oc.env`) or parse text anew (`oc.decode`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from omegaconf import OmegaConf

_closed = ContextVar("_closed", default=False)
_by_name: Callable[[str], Any] = OmegaConf._get_resolver


@contextmanager
def no_resolvers() -> Iterator[None]:
    """Inside, every interpolation that calls a resolver raises `UnsupportedInterpolationType`, however it names it.

    Interpolations of other keys (`${batch_size}`) go on. Other threads are not concerned.
    """
    before = _closed.set(True)
    try:
        yield
    finally:
        _closed.reset(before)


def _unless_closed(name: str) -> Any:
    return None if _closed.get() else _by_name(name)


OmegaConf._get_resolver = staticmethod(_unless_closed)  # the one function by which OmegaConf finds a resolver
