"""The groups, choices and fields that the page offers, read from the product's own files and types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_type_hints

from ..conf.grammar import as_override
from ..conf.groups import BY_NAME
from .rules import ValueRule, rule_of

NETWORK = "hardware/network"
FIXED = {  # keys that the lab sets, and why
    "hardware": "the lab runs on the virtual cluster alone",
    "tracking": "the lab keeps no runs and sends none",
    "launcher": "the lab starts its own processes",
    "name": "the lab keeps no runs",
    "experiment": "the page shows the choices of a preset one by one",
}
KEYS = ("hardware.workers", "steps", "batch_size", "seed", "hardware.workers_per_host")  # beside the groups


class LabChoice(Protocol):
    """A choice of a group, read from its file."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    def target(self) -> str: ...
    def knobs(self) -> dict[str, Any]: ...
    def comments(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class Listed:
    """All that can be chosen.

    Args:
        groups: the choices of each group, in the order of `paceline list`.
        first: the groups that people choose from first.
        defaults: the default choice of each group.
        keys: the defaults of keys outside any group, `hardware.workers` among them.
        comments: the configuration files' words on these keys.
        config_dir: the user's folder of choices, which `groups` has, too.
        allowed: the packages of the user's classes.
    """

    groups: Mapping[str, Sequence[LabChoice]]
    first: Sequence[str]
    defaults: Mapping[str, str]
    keys: Mapping[str, Any]
    comments: Mapping[str, str]
    config_dir: Path | None = None
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabField:
    """A key with a value. `usual`: its default as one types it; `about`: its meaning; `rule`: its type and bounds."""

    key: str
    usual: str
    about: str
    rule: ValueRule

    def plain(self, value: str) -> dict[str, Any]:
        """Returns the field with its value, for the page."""
        said = {"about": self.about, "rule": self.rule.words, "values": list(self.rule.values)}
        return {"key": self.key, "value": value, "usual": self.usual, **said}


class Catalogue:
    """The choices that each side of the page has."""

    def __init__(self, listed: Listed) -> None:
        offered = [name for name in listed.groups if (name in BY_NAME or name == NETWORK) and name not in FIXED]
        self.first = (*(name for name in listed.first if name in offered), NETWORK)
        order = dict.fromkeys((*self.first, *offered))
        self.groups = {group: {choice.name: choice for choice in listed.groups[group]} for group in order}
        self.defaults = {group: listed.defaults[group] for group in self.groups}
        self.config_dir, self.allowed = listed.config_dir, listed.allowed
        self._listed = listed

    def plain(self) -> list[dict[str, Any]]:
        """Returns the groups with their choices and descriptions, for the page."""
        return [
            {
                "group": group,
                "meaning": BY_NAME[group].meaning if group in BY_NAME else "the links between hosts",
                "first": group in self.first,
                "choices": [{"name": each.name, "about": each.description} for each in choices.values()],
            }
            for group, choices in self.groups.items()
        ]

    def fields(self, group: str, name: str) -> list[LabField]:
        """Returns the knobs of a choice. Raises `ConfigError` where its class cannot be had."""
        choice = self.groups[group][name]
        comments, prefix, rules = choice.comments(), group.replace("/", "."), _rules_of(group, choice, self.allowed)
        return [
            LabField(f"{prefix}.{knob}", as_override(value), comments.get(knob, ""), rules(knob))
            for knob, value in choice.knobs().items()
            if not isinstance(value, dict)
        ]

    def fields_of_run(self) -> list[LabField]:
        """Returns the keys outside any group."""
        from ..engine.config.experiment import Experiment, VirtualHardware

        hints = get_type_hints(Experiment, include_extras=True)
        of_hardware = get_type_hints(VirtualHardware, include_extras=True)
        hints |= {f"hardware.{key}": hint for key, hint in of_hardware.items()}
        keys, comments = self._listed.keys, self._listed.comments
        return [LabField(key, as_override(keys[key]), comments.get(key, ""), rule_of(hints.get(key))) for key in KEYS]


def _rules_of(group: str, choice: LabChoice, allowed: tuple[str, ...]) -> Any:
    """Returns the function from a knob to its rule. Raises `ConfigError`."""
    if group == NETWORK:
        from ..engine.config.experiment import NetworkModel

        hints = get_type_hints(NetworkModel, include_extras=True)
        return lambda knob: rule_of(hints.get(knob))
    from ..engine.config.targets import base_of, held_to, load_maker

    maker = load_maker(group, choice.target(), base_of(group), allowed)
    return lambda knob: rule_of(held_to(maker, knob))
