"""Collects all refusals of a configuration and reports them at once, so that a user can mend them together."""

from collections.abc import Callable, Iterable

from ...conf.errors import ConfigError


def refuse_all(checks: Iterable[Callable[[], object]]) -> None:
    """Ask each check. Raises what one alone refuses as it is; of several a `ConfigError`, with a line for each."""
    refused: list[ConfigError] = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        raise ConfigError("\n".join(str(each) for each in refused))


def refuse(lines: Iterable[str]) -> None:
    """Raises a `ConfigError` of these lines, where there are any."""
    if text := "\n".join(lines):
        raise ConfigError(text)
