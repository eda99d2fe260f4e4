"""The overrides that one would type for a configuration: its differences from the defaults of its choices."""

from typing import Any

import yaml

from ..conf.groups import BY_NAME
from .compose import compose
from .experiment import CONF, completed, shipped
from .grammar import as_override


def overrides_of(config: dict[str, Any]) -> list[str]:
    """What `compose` makes this stored configuration (config.yaml) of, its name aside: choices first, then keys.

    A user's own choice is named with all its keys: its defaults are not known here. Raises ConfigError when the
    configuration is not one of this version, KeyError or TypeError when it is not one at all.
    """
    mine = {key: value for key, value in completed(config).items() if key != "name"}
    choices = {group: mine[group]["name"] for group in BY_NAME}
    ours = {group: name for group, name in choices.items() if (CONF / group / f"{name}.yaml").is_file()}
    sections = _section_choices(mine)
    usual = usual_choices()
    default = compose([f"{group}={name}" for group, name in (ours | sections).items()]).model_dump()
    typed = [f"{group}={name}" for group, name in choices.items() if usual.get(group) != name]
    typed += [f"{group}={name}" for group, name in sections.items()]
    for key, value in mine.items():
        if key == "callbacks":
            typed += _callbacks(value)
        elif key in BY_NAME:
            knobs = default[key]["knobs"] if key in ours else dict.fromkeys(value["knobs"], _OTHER)
            typed += _differences(key, knobs, value["knobs"])
        else:
            typed += _differences(key, default.get(key, _MISSING), value)
    return typed


def usual_choices() -> dict[str, Any]:
    """By group: what is chosen where nothing is said."""
    listed = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return {group: name for entry in listed if isinstance(entry, dict) for group, name in entry.items()}


def _callbacks(chosen: dict[str, Any]) -> list[str]:
    typed = [f"callbacks={as_override(list(chosen))}"] if chosen else []
    for name, callback in chosen.items():
        ours = (CONF / "callbacks" / f"{name}.yaml").is_file()
        knobs = shipped("callbacks", name).knobs if ours else dict.fromkeys(callback["knobs"], _OTHER)
        typed += _differences(f"callbacks.{name}", knobs, callback["knobs"])
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
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        if is_it({key: value for key, value in content.items() if key != "defaults"}):
            return file.stem
    return None


def _differences(path: str, default: Any, mine: Any) -> list[str]:
    if isinstance(default, dict) and isinstance(mine, dict):
        gone = [f"~{path}.{key}" for key in default if key not in mine]
        inner = [_differences(f"{path}.{key}", default.get(key, _MISSING), value) for key, value in mine.items()]
        return [*gone, *(each for found in inner for each in found)]
    if default is _MISSING:
        return [f"+{path}={as_override(mine)}"]
    return [] if default == mine and type(default) is type(mine) else [f"{path}={as_override(mine)}"]
