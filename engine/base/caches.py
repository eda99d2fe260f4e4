"""Takes tensors of the meta device out of what users' modules keep: a plan runs a model there, and training would meet
them again.

Modules keep tensors in functools.lru_cache, in attributes of modules and classes, and in dicts in these.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

_ABSENT = object()
Owner = Any  # a module, a class, or a dict


@contextmanager
def without_meta(allowed: Sequence[str]) -> Iterator[None]:
    """Lets users' modules keep no tensor of the meta device from what runs here.

    Args:
        allowed: the packages of these modules. Modules that are imported here are taken as they are afterwards.
    """
    before = {(id(owner), name): _as_now(value) for owner, name, value in _kept(allowed)}
    try:
        yield
    finally:
        for owner, name, value in list(_kept(allowed)):
            old, now = before.get((id(owner), name), _ABSENT), _as_now(value)
            if now is not value:
                if now != old:
                    value.cache_clear()
            elif _is_meta(value) and old is not value:
                _put_back(owner, name, old)


def _kept(allowed: Sequence[str]) -> Iterator[tuple[Owner, Any, Any]]:
    """Yields each owner with the names and values of what it keeps."""
    if not allowed:  # a look through thousands of names would take longer than the rest of a small plan
        return
    names = [name for name in list(sys.modules) if name.partition(".")[0] in allowed or name in allowed]
    for module in (sys.modules[name] for name in names):
        here = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
        for owner in (module, *here):
            for name, value in list(vars(owner).items()):
                yield owner, name, value.__func__ if isinstance(value, staticmethod | classmethod) else value
                if type(value) is dict and not name.startswith("__"):
                    yield from ((value, key, its) for key, its in list(value.items()))


def _as_now(value: Any) -> Any:
    """Returns the number of results that a cache has computed; any other value as it is."""
    is_cache = hasattr(type(value), "cache_clear") and hasattr(type(value), "cache_info")
    return value.cache_info().misses if is_cache else value


def _is_meta(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(isinstance(each, Tensor) and each.is_meta for each in value)
    return isinstance(value, Tensor) and value.is_meta


def _put_back(owner: Owner, name: Any, old: Any) -> None:
    if isinstance(owner, dict):
        owner.pop(name)
        if old is not _ABSENT:
            owner[name] = old
    elif old is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, old)
