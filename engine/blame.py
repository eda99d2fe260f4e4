"""Where in a user's own code an exception was raised: `mine.wide.Wide.forward (mine/wide.py, line 14)`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FrameType

from torch import Tensor, nn

from .errors import ConfigError


@contextmanager
def blaming(what: str, allowed: tuple[str, ...]) -> Iterator[None]:
    """An exception out of a module that the user allowed becomes a `ConfigError` that begins with `what`."""
    try:
        yield
    except Exception as error:
        where = place(error, allowed)
        if hasattr(error, "exit_code") or not where:
            raise
        raise ConfigError(f"{what}: {where}: {said(error)}") from error


def said(error: BaseException) -> str:
    """Its type and its message's first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def place(error: BaseException, allowed: tuple[str, ...]) -> str:
    """The innermost function of the modules `allowed` that the exception came through; "" where there is none."""
    own = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _is_of(frame, allowed)]
    if not own:
        return ""
    frame, line = own[-1]
    code = frame.f_code
    return f"{frame.f_globals['__name__']}.{code.co_qualname} ({shortest(code.co_filename)}, line {line})"


def shortest(file: str) -> Path:
    """Relative to here, when it lies below."""
    path = Path(file)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


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
