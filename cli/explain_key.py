"""Suggests a name for `paceline explain` in place of a key that is no choice with a class."""

from pathlib import Path

from ..conf.groups import BY_NAME
from .choices import ListedChoice, groups, primary_comments


def about(what: str, config_dir: Path | None = None) -> str:
    """Says what a word is and what to explain: `evaluate.attack=pgd`, `sync.staleness`, `staleness`, `ring`.

    Returns "" for any other word.
    """
    key, _, value = what.partition("=")
    known = groups(config_dir)
    if key in known:
        return _of_group(key, value, known[key])
    group, _, knob = key.partition(".")
    if knob and group in known:
        having = [choice.name for choice in known[group] if knob in choice.knobs()]
        given = f" {key}={value}" if value else ""
        return (
            f"is a knob of {group}={', '.join(having)}: paceline explain {group}={having[0]}{given}" if having else ""
        )
    comment = primary_comments().get(key)
    if comment is None:
        named = [f"{group}={key}" for group, choices in known.items() for each in choices if each.name == key]
        ways = " or ".join(f"paceline explain {each}" for each in named if each.partition("=")[0] in BY_NAME)
        if not (ways or value):
            return _of_lone_knob(key, known, config_dir)
        return f"is no run, and a choice: {ways}" if ways and not value else ""
    alike = [f"{name}={value}" for name, choices in known.items() for each in choices if value and each.name == value]
    asked = f"; of that name there is: {', '.join(f'paceline explain {each}' for each in alike)}" if alike else ""
    said = f" ({comment})" if comment else ""
    return f"is a key of the configuration{said}, and explain takes choices, GROUP=CHOICE{asked}"


def _of_lone_knob(knob: str, known: dict[str, list[ListedChoice]], config_dir: Path | None) -> str:
    """Returns the explanation of the knob with this name; "" if no group has it, or several have."""
    having = [group for group, choices in known.items() if any(knob in each.knobs() for each in choices)]
    return about(f"{having[0]}.{knob}", config_dir) if len(having) == 1 else ""


def _of_group(group: str, value: str, choices: list[ListedChoice]) -> str:
    if not value:
        return (
            f"is a group; explain takes one of its choices, such as {group}={choices[0].name} (paceline list {group})"
        )
    found = next((choice for choice in choices if choice.name == value), None)
    if group in BY_NAME or found is None:
        return ""
    return f"{found.description}; there is no more to explain of it than its keys have (paceline list {group})"
