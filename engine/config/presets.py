"""Handles keys that an experiment's file sets for a choice that the user has replaced: `experiment=svm optimizer=adam`.

Keys that both choices have are set as the file says. Keys that the new one lacks would do nothing, or end the run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ...conf.errors import ConfigError
from .choice_files import file_of, section
from .experiment import CONF


def check_one(preset: object) -> None:
    """Raises `ConfigError` where there are several: the choices of one would be given the keys of another."""
    if isinstance(preset, list) and len(preset) > 1:
        raise ConfigError(
            f"experiment=[{','.join(map(str, preset))}]: takes one preset. Choose one of them, and give what the "
            "others set as overrides (paceline list experiment)."
        )


def check_left_over(preset: object, chosen: Mapping[str, object], given: set[str], config_dir: Path | None) -> None:
    """`chosen`: the choices beside the preset, by group; `given`: the keys that are set or deleted beside it.

    Raises `ConfigError` where the preset's file sets keys that one of these choices has not.
    """
    file = file_of("experiment", str(preset), config_dir) if preset is not None else None
    if file is None:
        return
    content = _read(file)
    for group, name in chosen.items():
        its, own = content.get(group), section(group, name, None)  # ours alone, whose files have every key
        if group == "experiment" or not isinstance(its, dict) or own is None:
            continue
        lacking = {key for key in its if key not in own} & _keys_of(group)
        left = [f"{group}.{key}" for key in its if key in lacking and f"{group}.{key}" not in given]
        before = _choice_in(content, group)
        if not left or before == name:
            continue
        keep = f", or keep {group}={before}" if before is not None else ""
        raise ConfigError(
            f"{', '.join(left)}: set by experiment={preset}, and {group}={name} has no such "
            f"{'key' if len(left) == 1 else 'keys'}; take {'it' if len(left) == 1 else 'them'} out "
            f"({' '.join(f'~{key}' for key in left)}){keep}"
        )


def _keys_of(group: str) -> set[str]:
    """Returns the keys of all our choices together. Any other key that a user's file sets, the class itself checks."""
    return {key for file in (CONF / group).glob("*.yaml") for key in _read(file)} - {"_target_", "defaults"}


def _choice_in(content: dict[str, Any], group: str) -> str | None:
    """Returns the choice of the group in a file's defaults, or else the default choice."""
    found = None
    for each in (*_read(CONF / "config.yaml")["defaults"], *content.get("defaults", ())):
        if isinstance(each, dict):
            for key, name in each.items():
                found = name if str(key).removeprefix("override ").lstrip("/") == group else found
    return found


def _read(file: Path) -> dict[str, Any]:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}
