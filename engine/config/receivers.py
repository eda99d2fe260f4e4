"""Checks that the receivers of a run's results were typed by its user, and never set by a file alone.

A file that somebody gave you (`--config FILE`, a preset of `--config-dir`, a sweep's definition) may name a server of
MLflow's or an account of W&B's. The run would send its metrics, its configuration and the machine's name there.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...conf.errors import ConfigError
from ...tracking.redact import hide_in_urls
from .choice_files import file_of, section

RECEIVERS = ("uri", "entity")  # keys of `tracking`


def check_receivers(source: str, tracking: Any, typed: Iterable[str], choice: object, config_dir: Path | None) -> None:
    """Raises `ConfigError` where a composed `tracking` has a receiver that nobody typed.

    Args:
        source: of the refusal, the file or the directory.
        typed: keys of the overrides on the command line.
        choice: of the group `tracking` on the command line; what its own file says counts as typed.
    """
    if not isinstance(tracking, Mapping):
        return
    keys = set(typed)
    own = section("tracking", choice, config_dir) or {}
    for key in RECEIVERS:
        value = tracking.get(key)
        if value is not None and f"tracking.{key}" not in keys and own.get(key) != value:
            _refuse(source, f"tracking.{key}", str(value))


def check_definition(source: str, told: Iterable[tuple[str, str]], typed: Iterable[str]) -> None:
    """Checks a sweep's file likewise. `told`: its keys and values."""
    keys = set(typed)
    for key, value in told:
        is_receiver = key in {f"tracking.{each}" for each in RECEIVERS} and value != "null"
        is_foreign = key == "tracking" and file_of(key, value) is None
        if key not in keys and (is_receiver or is_foreign):
            _refuse(source, key, value)


def _refuse(source: str, key: str, value: str) -> None:
    shown = hide_in_urls(value)
    raise ConfigError(
        f"{key}={shown}: {source} would send this run's results there. Give {key}={shown} on the command line to allow "
        "it, or choose tracking=none."
    )
