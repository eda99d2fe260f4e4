"""The groups that a composition has, and the refusal of overrides that move, add or delete a group's choice."""

from typing import Literal

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from .experiment import Experiment

GROUPS = (
    *BY_NAME,
    "hardware",
    "hardware/network",
    "hardware/network@hardware.inside",
    "hardware/network@hardware.uplink",
    "hardware/network@hardware.server",
    "tracking",
    "callbacks",
    "experiment",
)
FOLDERS = sorted({group.partition("@")[0] for group in GROUPS})


def check_group(text: str, group: str, section: str | None, how: Literal["set", "add", "force add", "delete"]) -> None:
    """Raises `ConfigError` for an override that takes a group's choice away, adds one or puts it in a section that no
    run has.

    Args:
        text: The override as it was typed.
        group: Its key, without the section.
        section: The words after `@`; None: there are none.
    """
    path, value = group if section is None else f"{group}@{section}", text.partition("=")[2]
    if group not in FOLDERS:
        if section is not None and group.partition(".")[0] in Experiment.model_fields:
            raise ConfigError(f"{text}: @ is for groups, and {group} is a key. Choose {group}={value}.")
        return
    if path not in GROUPS and str(section).partition(".")[0] not in Experiment.model_fields:
        raise ConfigError(f"{text}: no run has a section {section!r}. {in_place_of(group, value or 'NAME')}")
    if how == "delete" and path in GROUPS and path != "experiment":
        told = "callbacks=[]" if path == "callbacks" else f"{path}=NAME"
        raise ConfigError(f"{text}: a run cannot be without it. Choose {told}; see: paceline list {group}")
    if (how == "force add" or (how == "add" and path != "callbacks")) and path in GROUPS:
        raise ConfigError(f"{text}: + is for keys that are not there yet. Choose {path}={value}.")


def no_such_section(key: str) -> str | None:
    """Returns what to say of a `group@section` that a composition lacks; None: the key is none."""
    group, _, section = key.partition("@")
    if not section or key in GROUPS or group not in FOLDERS:
        return None
    return f"{key}: the section {section!r} has no choice of {group}. {in_place_of(group, 'NAME')}"


def in_place_of(group: str, value: str) -> str:
    """Returns what to write in place of an override that puts a choice of the group in a section of another name."""
    sections = [path for path in GROUPS if path.partition("@")[0] == group]
    return f"Choose {' or '.join(f'{path}={value}' for path in sections)}."
