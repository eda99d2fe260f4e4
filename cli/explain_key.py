"""Suggests a name for `paceline explain` in place of a key that is no choice with a class."""

import difflib
import re
from pathlib import Path

from ..conf.groups import BY_NAME
from ..conf.words import CHOICES, KEYS
from .choices import ListedChoice, groups, primary_comments

MOST = 3  # ways to write one word
_VALUES = re.compile(r"(?<=\| )[\w.]+|\w+(?= \|)")  # of a comment such as gpipe | 1f1b


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


def near(what: str, config_dir: Path | None = None) -> str:
    """Returns what is like this word, in any case of letters: choices, values of their knobs, groups and knobs.

    Returns "" where nothing is.
    """
    known = groups(config_dir)
    said: dict[str, list[str]] = {group: [group] for group in known}
    for group in BY_NAME:
        for choice in known.get(group, []):
            said.setdefault(choice.name, []).append(f"{group}={choice.name}")
            for knob, comment in choice.comments().items():
                said.setdefault(knob, [knob])
                for value in _VALUES.findall(comment):
                    said.setdefault(value, []).append(f"{group}={choice.name} {group}.{knob}={value}")
    for name, way in (KEYS | CHOICES).items():
        said.setdefault(name, [way])
    names = {name.casefold(): name for name in said}
    word = what.casefold()
    close = [word] if word in names else difflib.get_close_matches(word, names, n=2, cutoff=0.75)
    # choices first, and then those with a knob of this value
    ways = [way for each in close for way in sorted(said[names[each]], key=lambda way: " " in way)[:MOST]]
    return f"is no run and no choice; did you mean {' or '.join(ways)}?" if ways else ""


def _of_lone_knob(knob: str, known: dict[str, list[ListedChoice]], config_dir: Path | None) -> str:
    """Returns the explanation of the knob with this name, or the groups that have it; "" if none has."""
    having = [group for group, choices in known.items() if any(knob in each.knobs() for each in choices)]
    if len(having) == 1:
        return about(f"{having[0]}.{knob}", config_dir)
    return f"is a knob of several groups. Choose {' or '.join(f'{group}.{knob}' for group in having)}" if having else ""


def _of_group(group: str, value: str, choices: list[ListedChoice]) -> str:
    if not value:
        return (
            f"is a group; explain takes one of its choices, such as {group}={choices[0].name} (paceline list {group})"
        )
    found = next((choice for choice in choices if choice.name == value), None)
    if group in BY_NAME or found is None:
        return ""
    return f"{found.description}; there is no more to explain of it than its keys have (paceline list {group})"
