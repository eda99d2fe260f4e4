"""The error for a library that no longer has a name that we read from it."""

from importlib.metadata import version
from typing import Any


class ChangedLibraryError(RuntimeError):
    """An installed library has changed inside; the message says what is missing, and what cannot be done without it."""

    exit_code = 3


def need(owner: Any, name: str, library: str, use: str) -> Any:
    """`owner.name`. Without it, a guess would be a wrong state or a wrong figure: raises `ChangedLibraryError`."""
    try:
        return getattr(owner, name)
    except AttributeError:
        raise ChangedLibraryError(
            f"{library} {version(library)}: {type(owner).__name__} has no {name}, {use}; install the version of "
            f"{library} that constraints.txt names"
        ) from None
