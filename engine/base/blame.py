"""Finds where in a user's own code an exception was raised: `mine.wide.Wide.forward (mine/wide.py, line 14)`."""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType

from torch import Tensor, nn

from ...conf.errors import ConfigError
from ...tracking.visible import visible
from .failures import first_line_of, place_in, speaks_for_itself


@contextmanager
def blaming(what: str, allowed: tuple[str, ...]) -> Iterator[None]:
    """An exception out of a module that the user allowed becomes a `ConfigError` that begins with `what`."""
    try:
        yield
    except Exception as error:
        where = place(error, allowed)
        if speaks_for_itself(error) or not where:
            raise
        raise ConfigError(f"{what}: {where}: {said(error)}") from error


def said(error: BaseException) -> str:
    """Returns the error's type and its message's first line."""
    kind, line = visible(type(error).__name__), first_line_of(error)
    return f"{kind}: {line}" if line != kind else kind


def place(error: BaseException, allowed: tuple[str, ...]) -> str:
    """The innermost function of the modules `allowed` that the exception came through; "" where there is none."""
    return place_in(error, lambda frame: _is_of(frame, allowed))


def layer(error: BaseException) -> str:
    """The module, and its input's shape, whose forward raised it: `Linear(...), given [32, 64]`; "" where none did."""
    for frame, _ in reversed(list(walk_tb(error.__traceback__))):
        module, given = frame.f_locals.get("self"), frame.f_locals.get("input")
        if isinstance(module, nn.Module) and frame.f_code.co_name == "forward" and not list(module.children()):
            shape = f", given {list(given.shape)}" if isinstance(given, Tensor) else ""
            return " ".join(f"{module!r}{shape}".split())
    return ""


def _is_of(frame: FrameType, allowed: tuple[str, ...]) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return any(name == module or name.startswith(f"{module}.") for module in allowed)
