"""A choice that is described where it is made, without a file: its class, and its knobs.

    model={_target_:mine.houses.OfStreets,width:16}
    data={_target_:mine.wine.Wine,name:wine}        its name in tables and records; without one it is the class's

    sync=sparta+diloco                              several choices, with the knobs of their files (sync.parts.sparta)

So a run of a person's own classes is repeated from its record alone. What may be imported is still what was allowed:
see targets.py.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...conf.errors import ConfigError
from ...conf.grammar import as_override
from ...conf.groups import BY_NAME
from ...tracking.redact import HIDDEN
from ...tracking.text import did_you_mean
from .choice_files import choices_of
from .experiment import Choice

_NAME = re.compile(r"[\w.+-]{1,64}")


def is_described(group: str, value: Any) -> bool:
    """Returns whether an override of the group with this value names no file."""
    if group not in BY_NAME:
        return False
    return (isinstance(value, dict) and "_target_" in value) or is_composed(group, value)


def is_composed(group: str, value: Any) -> bool:
    """Returns whether the value names several choices, A+B."""
    return isinstance(value, str) and "+" in value and bool(BY_NAME[group].composed)


def composed(group: str, name: str, config_dir: Path | None = None) -> Choice:
    """Returns the choice that is made of several, A+B. Raises `ConfigError`."""
    known = {choice.name: choice for choice in choices_of(group, config_dir)}
    names = [each.strip() for each in name.split("+")]
    if "" in names:
        raise ConfigError(f"{group}={name}: has a + without a choice beside it. Choose {group}=A+B.")
    for each in names:
        if each not in known:
            hint = did_you_mean(each, known) or f"see: paceline list {group}"
            raise ConfigError(f"{group}={name}: there is no choice {each!r}; {hint}")
        if names.count(each) > 1:
            raise ConfigError(
                f"{group}={name}: has {each} twice, and each has its knobs under its name. Give one of them another "
                "name in a file of your own"
            )
    parts = {each: {"_target_": known[each].target, **known[each].knobs} for each in names}
    return Choice(name="+".join(names), target=BY_NAME[group].composed, knobs={"parts": parts})


def described(group: str, value: Any, config_dir: Path | None = None) -> Choice | None:
    """`value`: what an override gives the group; None where it describes no class. Raises `ConfigError`."""
    if not is_described(group, value):
        return None
    if is_composed(group, value):
        return composed(group, value, config_dir)
    knobs = {str(key): each for key, each in value.items()}
    target = knobs.pop("_target_")
    if not isinstance(target, str):
        raise ConfigError(f"{group}._target_={target}: must be module.Class")
    name = knobs.pop("name", None) or class_of(target)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{group}.name={name}: is no name of a choice: 1 to 64 letters, digits, or . _ -")
    return Choice(name=name, target=target, knobs=knobs)


def labelled(overrides: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the group and the value of overrides that describe a choice and name it, and give no knob `name`.

    Args:
        overrides: The key and the value of each.
    """
    keys = {key for key, _ in overrides}
    for group, value in overrides:
        if is_described(group, value) and isinstance(value, dict) and "name" in value and f"{group}.name" not in keys:
            yield group, {str(key): of_key for key, of_key in value.items()}


def class_of(target: str) -> str:
    return target.rpartition(".")[2]


def as_described(path: str, name: str, target: str, knobs: dict[str, Any]) -> Iterator[str]:
    """The overrides that describe a choice: `path` is its group, or `callbacks.` and its name.

    A secret that was not stored, and a knob that is called `name`, are overrides of their own.
    """
    apart = {knob for knob, value in knobs.items() if knob == "name" or HIDDEN in str(value)}
    of_group = path in BY_NAME
    named = {"name": name} if of_group and name != class_of(target) else {}
    within = {knob: value for knob, value in knobs.items() if knob not in apart}
    yield f"{'' if of_group else '+'}{path}={as_override({'_target_': target, **named, **within})}"
    yield from (f"+{path}.{knob}={as_override(knobs[knob])}" for knob in knobs if knob in apart)
