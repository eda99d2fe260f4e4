"""Reads the configuration that `engine.run` and similar functions take, in any form that Python has for one.

Overrides as on the command line, one text with several of them, a nested mapping (a dict, or one of OmegaConf's), a
whole configuration that was composed or stored, or an experiment.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ...conf.errors import ConfigError
from ...conf.grammar import as_override
from ...conf.groups import BY_NAME, NAMING
from ...tracking.files import UnusableFileError, check_values
from .experiment import CONF, STORED, Choice, Experiment, explain, from_config, from_plain, shipped

Settings = str | Sequence[str] | Mapping[str, Any] | Experiment
_NAMED = (*BY_NAME, "hardware", "tracking")  # groups: of a mapping, `name` is the choice


@dataclass
class Asked:
    """`built`: the choices that name a class instead of a file; `allowed`: the modules of classes that were given as
    objects; `experiment`: all of it, where a whole configuration was given.
    """

    overrides: list[str] = field(default_factory=list[str])
    built: dict[str, Choice] = field(default_factory=dict[str, Choice])
    callbacks: dict[str, Choice] = field(default_factory=dict[str, Choice])
    called: list[str] = field(default_factory=list[str])  # the names of callbacks in their order
    allowed: list[str] = field(default_factory=list[str])
    experiment: Experiment | None = None

    def completed(self, composed: Experiment) -> Experiment:
        """`composed` of the overrides, with the classes that were asked for. Raises `ConfigError`."""
        if not self.built and not self.callbacks:
            return composed
        plain: dict[str, Any] = {group: choice.model_dump() for group, choice in self.built.items()}
        chosen = composed.callbacks | self.callbacks
        order = dict.fromkeys([*(name for name in self.called if name in chosen), *chosen])
        plain["callbacks"] = {name: chosen[name].model_dump() for name in order}
        try:
            check_values(plain)  # or the run's config.yaml could not be read again
            return Experiment.model_validate(composed.model_dump() | plain)
        except UnusableFileError as error:
            raise ConfigError(f"the configuration {error}") from None
        except ValidationError as error:
            raise ConfigError(explain(error)) from None


def asked(settings: Settings, more: Mapping[str, Any] | None = None) -> Asked:
    """`more`: keyword arguments, which come last. Raises `ConfigError`."""
    found = _asked(settings)
    if not more:
        return found
    if found.experiment is not None:
        raise ConfigError(f"{next(iter(more))}: a whole configuration is run as it is; change it before it is given")
    _read(more, found)
    return found


def _asked(settings: Any) -> Asked:
    if isinstance(settings, Experiment):
        return Asked(experiment=settings)
    if isinstance(settings, str):
        return Asked(shlex.split(settings))
    plain = _plain(settings)
    if isinstance(plain, Mapping):
        if (whole := _whole(plain)) is not None:
            return Asked(experiment=whole)
        found = Asked()
        _read(plain, found)
        return found
    if isinstance(plain, Sequence) and all(isinstance(text, str) for text in plain):
        return Asked(list(plain))
    raise ConfigError(
        f"{type(settings).__name__}: is no configuration; give a list of overrides such as ['sync=asp'], a dict such "
        "as {'sync': 'asp'}, a configuration of OmegaConf's, or what engine.prepare returned"
    )


def _plain(settings: Any) -> Any:
    from omegaconf import DictConfig, ListConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(settings, DictConfig | ListConfig):
        return settings
    try:
        return OmegaConf.to_container(settings, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the configuration cannot be resolved: {str(error).splitlines()[0]}") from None


def _whole(plain: Mapping[str, Any]) -> Experiment | None:
    """Returns the experiment if each group is there with its class: as Hydra composes it, or as a run's config.yaml has
    it.
    """
    sections = [plain.get(group) for group in BY_NAME]
    if all(isinstance(section, Mapping) and section.keys() == STORED for section in sections):
        return from_plain(dict(plain))
    if all(isinstance(section, Mapping) and "_target_" in section for section in sections):
        return from_config(dict(plain), {group: _name_of(group, plain[group]) for group in BY_NAME})
    return None


def _read(mapping: Mapping[str, Any], into: Asked) -> None:
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise ConfigError(f"{key!r}: a key of a configuration is text")
        if key == "callbacks":
            _read_callbacks(value, into)
        elif isinstance(value, type):
            into.built[key] = _of_class(key, value, {}, into)
        elif isinstance(value, Mapping) and key in _NAMED:
            _read_choice(key, dict(value), into)
        else:
            into.overrides += _overrides(key, value)


def _read_choice(group: str, section: dict[str, Any], into: Asked) -> None:
    """`{"name": "ssp", "staleness": 3}`, `{"_target_": "mine.wide.Wide", "width": 64}`, or knobs alone."""
    if section.keys() == STORED and isinstance(section["knobs"], Mapping):
        target, knobs, name = section["target"], dict(section["knobs"]), section["name"]
        into.built[group] = Choice(name=str(name), target=str(target), knobs=knobs)
        return
    target, name = section.pop("_target_", None), section.pop("name", None)
    if target is not None and group not in BY_NAME:
        raise ConfigError(f"{group}._target_: the choices of {group} name no class; see: paceline list {group}")
    if isinstance(target, type):
        into.built[group] = _of_class(group, target, section, into)
    elif target is not None:
        chosen = name or _name_of(group, {**section, "_target_": target})
        into.built[group] = Choice(name=str(chosen), target=str(target), knobs=section)
    else:
        into.overrides += [] if name is None else _overrides(group, name)
        into.overrides += [each for key, value in section.items() for each in _overrides(f"{group}.{key}", value)]


def _read_callbacks(value: Any, into: Asked) -> None:
    """Names of choices, classes and objects; in a mapping each with its knobs, or under a name of its own."""
    each = list(value.items()) if isinstance(value, Mapping) else [(None, one) for one in _listed(value)]
    named: list[str] = []
    for name, one in each:
        if isinstance(one, str) and name is None:
            named.append(one)
            into.called.append(one)
        elif isinstance(one, Mapping) and "_target_" not in one and one.keys() != STORED:
            named.append(str(name))
            into.called.append(str(name))
            into.overrides += [
                text for key, knob in one.items() for text in _overrides(f"callbacks.{name}.{key}", knob)
            ]
        else:
            choice = _callback(name, one, into)
            into.callbacks[choice.name] = choice
            into.called.append(choice.name)
    into.overrides += [f"callbacks=[{','.join(named)}]"] if named else []


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _callback(name: str | None, one: Any, into: Asked) -> Choice:
    if isinstance(one, Mapping):
        if one.keys() == STORED:
            return Choice(name=str(name), target=str(one["target"]), knobs=dict(one["knobs"]))
        knobs = {key: value for key, value in one.items() if key != "_target_"}
        target = one["_target_"]
        if not isinstance(target, type):
            return Choice(name=str(name), target=str(target), knobs=knobs)
        return _of_class("callbacks", target, knobs, into).model_copy(update={"name": str(name)})
    cls = one if isinstance(one, type) else type(one)
    knobs = {} if isinstance(one, type) else getattr(one, "knobs", None)
    if knobs is None:
        raise ConfigError(
            f"callbacks: a {cls.__name__} is no callback; give a choice's name, a class derived from "
            "paceline.engine.callbacks.Callback, or an object of one"
        )
    return _of_class("callbacks", cls, dict(knobs), into).model_copy(update={"name": name or cls.__name__})


def _of_class(group: str, cls: type, knobs: dict[str, Any], into: Asked) -> Choice:
    if group not in NAMING:
        raise ConfigError(f"{group}={cls.__name__}: is a class, and {group} is no group whose choices are classes")
    if cls.__module__ == "__main__":
        raise ConfigError(
            f"{group}={cls.__name__}: is defined in this script or notebook, which workers do not import; write it to "
            f"a file (in a notebook: %%writefile mine.py) and import it from there: from mine import {cls.__name__}"
        )
    if "<locals>" in cls.__qualname__ or "." in cls.__qualname__:
        raise ConfigError(
            f"{group}={cls.__name__}: is defined inside of {cls.__qualname__.rpartition('.')[0]}, where workers cannot "
            "find it; define it at the top of a module"
        )
    into.allowed.append(cls.__module__)
    return Choice(name=cls.__name__, target=f"{cls.__module__}.{cls.__qualname__}", knobs=knobs)


def _overrides(key: str, value: Any) -> list[str]:
    """Returns the overrides of the leaves of a nested mapping."""
    if isinstance(value, Mapping) and value:
        return [each for inner, found in value.items() for each in _overrides(f"{key}.{inner}", found)]
    return [f"{key}={as_override(dict(value) if isinstance(value, Mapping) else value)}"]


def _name_of(group: str, section: Mapping[str, Any]) -> str:
    """Returns the name of our choice with this class that shares most values; else the class's name."""
    target = str(section["_target_"])
    files = sorted((CONF / group).glob("*.yaml"))
    ours = [choice for choice in (shipped(group, file.stem) for file in files) if choice.target == target]
    if not ours:
        return target.rpartition(".")[2]
    return max(ours, key=lambda choice: sum(section.get(key) == value for key, value in choice.knobs.items())).name
