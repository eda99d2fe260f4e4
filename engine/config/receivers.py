"""Checks that the receivers of a run's results, and what runs as its user, were typed, and never set by a file alone.

A file that somebody gave you (`--config FILE`, a preset of `--config-dir`, a sweep's definition) may name a server of
MLflow's or an account of W&B's. The run would send its metrics, its configuration and the machine's name there. It may
also have a launcher run lines of shell or an image, or start the run on hosts of its own.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ...conf.errors import ConfigError
from ...conf.grammar import as_override
from ...tracking.redact import hide_in_urls
from .choice_files import file_of, stated

RECEIVERS = {
    "tracking": ("uri", "entity"),
    "launcher": ("setup", "extra", "nodes", "address", "image"),
}  # keys of groups
_DONE = {
    "tracking": ("would send this run's results there", "tracking=none"),
    "launcher": ("would have that run as you, or this run start there", "launcher=auto"),
}
_NOTHING = {
    "setup": re.compile(r"\[\]"),
    "extra": re.compile(r"\[\]"),
    "nodes": re.compile(r"\d+(:\d+)?"),
    "address": re.compile(r"auto"),
}  # texts of values that name nobody and run nothing, by key


def check_receivers(
    source: str,
    sections: Mapping[str, Any],
    typed: Iterable[str],
    choices: Mapping[str, object],
    config_dir: Path | None,
) -> None:
    """Raises `ConfigError` where a composed section has a receiver, or a command, that nobody typed.

    Args:
        source: of the refusal, the file or the directory.
        sections: of the groups, by name.
        typed: keys of the overrides on the command line.
        choices: of groups on the command line; what a choice's own file says counts as typed.
    """
    keys = set(typed)
    for group, names in RECEIVERS.items():
        its = sections.get(group)
        told = stated(group, choices.get(group), config_dir)
        own: Any = {} if told is None else OmegaConf.to_container(told)  # an interpolation may be anybody's words
        for key, value in its.items() if isinstance(its, Mapping) else ():
            if key in names and _names(key, value) and f"{group}.{key}" not in keys and own.get(key) != value:
                _refuse(source, f"{group}.{key}", value)


def check_definition(source: str, told: Iterable[tuple[str, str]], typed: Iterable[str]) -> None:
    """Checks a sweep's file likewise. `told`: its keys and values."""
    keys = set(typed)
    for key, value in told:
        group, _, name = key.partition(".")
        is_receiver = name in RECEIVERS.get(group, ()) and _names(name, value)
        is_foreign = key in RECEIVERS and file_of(key, value) is None
        if key not in keys and (is_receiver or is_foreign):
            _refuse(source, key, value)


def _names(key: str, value: Any) -> bool:
    nothing = _NOTHING.get(key)
    return value is not None and str(value) != "null" and not (nothing and nothing.fullmatch(str(value)))


def _refuse(source: str, key: str, value: Any) -> None:
    done, instead = _DONE[key.partition(".")[0]]
    shown = hide_in_urls(value if isinstance(value, str) else as_override(value))
    raise ConfigError(
        f"{key}={shown}: {source} {done}. Give {key}={shown} on the command line to allow it, or choose {instead}."
    )
