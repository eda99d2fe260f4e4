"""Holds a knob that its class does not annotate to the kind of number that its file has."""

import json
from collections.abc import Iterable

from omegaconf import DictConfig, OmegaConf

from ...conf.errors import ConfigError
from ...tracking.redact import shown
from .constructors import parameters_of

KINDS = {bool: ("true or false", bool), int: ("a whole number", int), float: ("a number", int | float)}


def numbers(config: DictConfig, keys: Iterable[str]) -> dict[str, bool | int | float]:
    """Returns the numbers and bools that overrides of these keys replace, by knob."""
    found: dict[str, bool | int | float] = {}
    for key in keys:
        parent, _, last = key.lstrip("+~").rpartition(".")
        section = OmegaConf.select(config, parent) if parent else None
        if isinstance(section, DictConfig) and "_target_" in section and last in section:
            value = section.get(last)
            if isinstance(value, bool | int | float):
                found[f"{parent}.{last}"] = value
    return found


def check_kinds(usual: dict[str, bool | int | float], config: DictConfig) -> None:
    """Holds knobs that their class does not annotate to the kind of number that their file has. Raises
    `ConfigError`.
    """
    for key, before in usual.items():
        parent, _, last = key.rpartition(".")
        section = OmegaConf.select(config, parent)
        if not isinstance(section, DictConfig) or last not in section:
            continue  # deleted
        value, target = section.get(last), str(section.get("_target_"))
        what, kinds = KINDS[type(before)]
        if isinstance(value, kinds) and isinstance(value, bool) == isinstance(before, bool):
            continue
        parameter = parameters_of(target).get(last)
        if parameter is None or parameter.is_annotated or (value is None and parameter.may_be_null):
            continue
        example = f"{key}={_as_typed(before)}"
        raise ConfigError(
            f"{key}={_as_typed(shown(key, value))}: must be {what}. Choose one, such as {example}. The constructor of "
            f"{target} does not annotate {last}: a type there says which values it takes."
        )


def _as_typed(value: object) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
