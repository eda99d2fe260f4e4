"""Checks that the files that a run is trained on are still those that it began with."""

from ...conf.errors import ConfigError
from ...tasks.base import Data
from ...tasks.data.files import sha256_of
from ...tracking.run_directory import RunDirectory
from .stored import anew


def sums_of(data: Data) -> dict[str, str]:
    """The SHA-256 of each file that `data` are read from. Raises as opening one does."""
    return {str(path): sha256_of(path) for path in data.files()}


def check_data(directory: RunDirectory, now: dict[str, str], known: dict[str, str] | None) -> None:
    """`known`: what a checkpoint's manifest has. Only content counts: files may be moved. Raises `ConfigError`."""
    if known is None or [*now.values()] == [*known.values()]:
        return
    pairs = zip(now.items(), known.values(), strict=False)
    changed = next((path for (path, digest), before in pairs if digest != before), next(iter([*now, *known])))
    raise ConfigError(
        f"--resume {directory.name}: {changed} is not what the run began with (its SHA-256 is another one), and a run "
        f"goes on with the same data; put back what was there{anew(directory)}"
    )
