"""Parses the configurations of many runs, which have most of their sections in common: each distinct one once.

A configuration is a YAML mapping in block style, as `yaml.safe_dump` writes it. A line that begins with a key begins a
section, which is YAML by itself and means the same by itself. What is written in any other way is parsed as a whole.
"""

import re
from functools import lru_cache
from typing import Any

from .files import OTHER_BREAKS, StrictYamlLoader, UnusableFileError, parse_yaml

MOST_CHARACTERS = 1 << 15  # of a text with sections; without aliases it cannot hold too many values
MOST_SECTIONS = 1 << 13  # that are remembered
_KEY = r"[A-Za-z_][A-Za-z0-9_]*:(?: [^\n]*)?\n"
_MORE = (
    r"(?:(?: [^\n]*|-(?: [^\n]*)?)?\n)*"  # lines further right, empty ones, and lists, which may begin below the key
)
_SECTION = re.compile(_KEY + _MORE)
_SECTIONS = re.compile(rf"((?:{_KEY}{_MORE})+)(?:#[^\n]*\n)*")
_WORDS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*): ([A-Za-z][A-Za-z0-9_.-]*)\n")  # every run has a name of its own
_ACROSS = re.compile(rf"[&*{OTHER_BREAKS}]")  # an alias may stand for what is in another section


def parse_configuration(text: str) -> Any:
    """Parses like `parse_yaml`, within the same bounds. Sections are shared between configurations: nobody may change
    them.
    """
    found = _SECTIONS.fullmatch(text) if len(text) <= MOST_CHARACTERS and not _ACROSS.search(text) else None
    if found is None:
        return parse_yaml(text)
    configuration: dict[Any, Any] = {}
    try:
        for section in _SECTION.findall(found[1]):
            parsed = _parsed(section)
            if parsed.keys() & configuration.keys():
                return parse_yaml(text)  # which says what is wrong with a key that is there twice
            configuration |= parsed
    except UnusableFileError:  # a quoted text may go on in what looks like the next section
        return parse_yaml(text)
    return configuration


@lru_cache(MOST_SECTIONS)
def _parsed(section: str) -> dict[Any, Any]:
    words = _WORDS.fullmatch(section)
    if words and not any(map(_is_more_than_text, words.groups())):
        return {words[1]: words[2]}
    return parse_yaml(section)


def _is_more_than_text(word: str) -> bool:
    """`no`, `null`: whatever the loader would not take for text."""
    rules: dict[str | None, list[tuple[str, re.Pattern[str]]]] = StrictYamlLoader.yaml_implicit_resolvers
    return any(rule.match(word) for first in (word[0], None) for _, rule in rules.get(first, []))
