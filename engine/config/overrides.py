"""The overrides that one would type for a configuration: its differences from the defaults of its choices."""

import itertools
import re
from pathlib import Path
from typing import Any

from ...conf import grammar
from ...conf.groups import BY_NAME
from ...tracking.files import read_yaml
from .choice_files import file_of
from .compose import compose
from .described import as_described
from .experiment import CONF, completed, shipped

_OPENED = re.compile(r"(\\*)\$\{")  # where OmegaConf would read an interpolation


def as_override(value: Any) -> str:
    """Returns a stored value as in an override. It was resolved, and what looks like an interpolation is a text."""
    return grammar.as_override(_literal(value))


def _literal(value: Any) -> Any:
    match value:
        case str():
            return _OPENED.sub(lambda found: found[1] * 2 + r"\${", value)
        case list():
            return [_literal(each) for each in value]
        case dict():
            return {key: _literal(each) for key, each in value.items()}
        case _:
            return value


def overrides_of(config: dict[str, Any], config_dir: Path | None = None) -> list[str]:
    """Returns the overrides of which `compose` makes this stored configuration (config.yaml), without its name: choices
    first, then keys.

    A choice that is in `config_dir`, the user's own directory, is named with all its keys: its defaults may have
    changed. One that there is no file of is described by its class. Raises ConfigError when the configuration is not
    one of this version, KeyError or TypeError when it is not one at all.
    """
    mine = {key: value for key, value in completed(config).items() if key != "name"}
    choices = {group: mine[group]["name"] for group in BY_NAME}
    ours = {group: name for group, name in choices.items() if file_of(group, name)}
    named = {group: name for group, name in choices.items() if file_of(group, name, config_dir)}
    sections = _section_choices(mine)
    usual = usual_choices()
    default = compose([f"{group}={name}" for group, name in (ours | sections).items()]).model_dump()
    typed = [f"{group}={name}" for group, name in named.items() if usual.get(group) != name]
    for group in (group for group in choices if group not in named):
        typed += as_described(group, **_literal(mine[group]))
    typed += [f"{group}={name}" for group, name in sections.items()]
    for key, value in mine.items():
        if key == "callbacks":
            typed += _callbacks(value, config_dir)
        elif key in ours:
            typed += _differences(f"{key}._target_", default[key]["target"], value["target"])
            typed += _differences(key, default[key]["knobs"], value["knobs"])
        elif key in named:
            typed += _differences(key, dict.fromkeys(value["knobs"], _OTHER), value["knobs"])
        elif key not in choices:
            typed += _differences(key, default.get(key, _MISSING), value)
    return typed


def usual_choices() -> dict[str, Any]:
    """Returns the default choice by group."""
    listed = read_yaml(CONF / "config.yaml")["defaults"]
    return {group: name for entry in listed if isinstance(entry, dict) for group, name in entry.items()}


def _callbacks(chosen: dict[str, Any], config_dir: Path | None) -> list[str]:
    """Returns overrides for the callbacks, which are called in their order. From the first one without a file on, each
    is described.
    """
    names = list(chosen)
    named = list(itertools.takewhile(lambda name: file_of("callbacks", name, config_dir), names))
    typed = [f"callbacks={as_override(named)}"] if named else []
    for name in named:
        knobs = chosen[name]["knobs"]
        usual = shipped("callbacks", name).knobs if file_of("callbacks", name) else dict.fromkeys(knobs, _OTHER)
        typed += _differences(f"callbacks.{name}", usual, knobs)
    for name in names[len(named) :]:
        typed += as_described(f"callbacks.{name}", **_literal(chosen[name]))
    return typed


_MISSING, _OTHER = object(), object()


def _section_choices(config: dict[str, Any]) -> dict[str, str]:
    """The choices of groups whose names are not stored, found by what they hold; the defaults are left out."""
    found: dict[str, str] = {}
    hardware = config["hardware"]
    if hardware["fabric"] == "virtual":
        found["hardware"] = "virtual"
        for group, section, usual in (
            ("hardware/network", "network", "ethernet_10g"),
            ("hardware/network@hardware.inside", "inside", "nvlink"),
        ):
            name = _holding("hardware/network", lambda content, section=section: content == hardware[section])
            if name not in (None, usual):
                found[group] = str(name)
    elif hardware.get("machine") is not None:
        name = _holding("hardware", lambda content: content.get("machine") == hardware["machine"])
        if name is not None:
            found["hardware"] = name
    if config["tracking"].get("wandb") is False:
        found["tracking"] = next((name for name in ("tensorboard", "mlflow") if config["tracking"].get(name)), "none")
    return found


def _holding(group: str, is_it: Any) -> str | None:
    """The choice of a group whose file holds what is looked for."""
    for file in sorted((CONF / group).glob("*.yaml")):
        content = read_yaml(file) or {}
        if is_it({key: value for key, value in content.items() if key != "defaults"}):
            return file.stem
    return None


def _are_parts(knob: dict[str, Any]) -> bool:
    """Returns whether they are the parts of a composed choice, whose order counts."""
    return all(isinstance(each, dict) and "_target_" in each for each in knob.values())


def _differences(path: str, default: Any, mine: Any) -> list[str]:
    if isinstance(default, dict) and isinstance(mine, dict):
        if _are_parts(mine) and [key for key in default if key in mine] != [key for key in mine if key in default]:
            return [f"~{path}", f"+{path}={as_override(mine)}"]  # in another order
        gone = [f"~{path}.{key}" for key in default if key not in mine]
        inner = [_differences(f"{path}.{key}", default.get(key, _MISSING), value) for key, value in mine.items()]
        return [*gone, *(each for found in inner for each in found)]
    if default is _MISSING:
        return [f"+{path}={as_override(mine)}"]
    return [] if default == mine and type(default) is type(mine) else [f"{path}={as_override(mine)}"]
